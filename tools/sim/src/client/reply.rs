//! Parses replies and compares each with the expected one.
//!
//! A small parser of its own, so that server and check cannot share an error. It refuses whatever
//! the server never sends: folded fields, transfer codings, heads above [`HEAD_BYTES_MAX`].

use std::collections::VecDeque;

use super::Violation;
use super::body::{Body, content_range};
use super::plan::{Asked, DIRECTORY, Expected, ExpectedBody, Permits};

/// A reply head longer than this is a violation.
const HEAD_BYTES_MAX: usize = 4096;

/// The state of the parser.
#[derive(Debug, Default)]
pub(super) struct ReplyReader {
    /// The head so far; empty between replies.
    head: Vec<u8>,
    /// The body in progress.
    body: Option<Body>,
    /// Replies read whole, those that refused not counted.
    pub(super) replies: u64,
    /// Body bytes compared with their objects.
    pub(super) verified_bytes: u64,
    /// The last whole reply announced that no other follows.
    pub(super) last_reply: bool,
    /// The status that refused a request for a reason the scenario permits.
    pub(super) refused: Option<u16>,
}

/// A parsed reply head.
#[derive(Debug, Default, PartialEq, Eq)]
struct Head {
    status: u16,
    content_length: Option<u64>,
    content_range: Option<String>,
    entity_tag: Option<String>,
    /// Of a multipart body.
    boundary: Option<String>,
    location: Option<String>,
    close: bool,
}

impl ReplyReader {
    /// Whether no reply is in progress.
    pub(super) fn is_between_replies(&self) -> bool {
        self.head.is_empty() && self.body.is_none()
    }

    /// Takes the next `bytes` of the stream; pops from `awaiting` what was answered.
    pub(super) fn handle_bytes(
        &mut self,
        mut bytes: &[u8],
        awaiting: &mut VecDeque<Asked>,
        permits: Permits,
    ) -> Result<(), Violation> {
        while !bytes.is_empty() {
            bytes = match self.body.is_some() {
                true => self.handle_body(bytes, awaiting)?,
                // The connection ends after a refusal: the rest is not read.
                false if self.refused.is_some() => break,
                false => self.handle_head(bytes, awaiting, permits)?,
            };
        }
        Ok(())
    }

    fn handle_head<'a>(
        &mut self,
        bytes: &'a [u8],
        awaiting: &mut VecDeque<Asked>,
        permits: Permits,
    ) -> Result<&'a [u8], Violation> {
        let known = self.head.len();
        self.head.extend_from_slice(bytes);
        // The blank line may have begun in the bytes before.
        let from = known.saturating_sub(3);
        let Some(end) = self.head[from..]
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
        else {
            if self.head.len() > HEAD_BYTES_MAX {
                return Err(format!("a reply head of more than {HEAD_BYTES_MAX} bytes"));
            }
            return Ok(&[]);
        };
        let head_bytes = from + end + 4;
        let rest = &bytes[head_bytes - known..];
        let head = Head::parse(&self.head[..head_bytes - 4])?;
        self.head.clear();
        let Some(asked) = awaiting.front() else {
            return self.judge_unasked(&head, permits).map(|()| rest);
        };
        let body = self.judge_head(&head, &head.expected(asked)?, permits)?;
        self.last_reply = head.close;
        self.body = Some(body);
        // An empty body ends here.
        self.handle_body(&[], awaiting)?;
        Ok(rest)
    }

    /// A reply without a request: only 408, for a head that took too long.
    fn judge_unasked(&mut self, head: &Head, permits: Permits) -> Result<(), Violation> {
        if head.status != 408 || !permits.lateness {
            return Err(format!(
                "a reply of status {} to nothing we asked",
                head.status
            ));
        }
        let length_bytes = head.content_length.unwrap_or_default();
        self.refused = Some(head.status);
        self.body = Some(Body::text(length_bytes));
        Ok(())
    }

    /// Whether `head` is what was expected or what is permitted, and which body follows it.
    fn judge_head(
        &mut self,
        head: &Head,
        expected: &Expected,
        permits: Permits,
    ) -> Result<Body, Violation> {
        if head.status != expected.status {
            return self.judge_refusal(head, expected, permits);
        }
        if expected.close && !head.close {
            return Err(format!("a {} that ignores Connection: close", head.status));
        }
        let location = (head.status == 301).then_some(DIRECTORY);
        if head.location.as_deref() != location {
            return Err(format!("Location {:?}, not {location:?}", head.location));
        }
        if expected.body == ExpectedBody::Nothing {
            // RFC 9110 s15.4.5: no content, whatever Content-Length says.
            return Ok(Body::text(0));
        }
        let announced = head.announced()?;
        head.judge_body_fields(expected, announced)?;
        let length_bytes = if expected.head { 0 } else { announced };
        let body = if expected.head {
            ExpectedBody::Text
        } else {
            expected.body
        };
        Ok(Body::new(body, length_bytes, head.boundary.clone()))
    }

    /// A status other than the expected one.
    fn judge_refusal(
        &mut self,
        head: &Head,
        expected: &Expected,
        permits: Permits,
    ) -> Result<Body, Violation> {
        let permitted = match head.status {
            408 => permits.lateness,
            500 => permits.broken_replies,
            503 => permits.busy,
            _ => false,
        };
        if !permitted {
            return Err(format!(
                "status {}, expected {}",
                head.status, expected.status
            ));
        }
        self.refused = Some(head.status);
        let announced = head.announced()?;
        // A 408 is sent before the method is read, so it has a body even for HEAD.
        let has_body = !expected.head || head.status == 408;
        Ok(Body::text(if has_body { announced } else { 0 }))
    }

    fn handle_body<'a>(
        &mut self,
        bytes: &'a [u8],
        awaiting: &mut VecDeque<Asked>,
    ) -> Result<&'a [u8], Violation> {
        let body = self.body.as_mut().expect("invariant: called inside a body");
        let left = usize::try_from(body.left_bytes()).unwrap_or(usize::MAX);
        let (ours, rest) = bytes.split_at(left.min(bytes.len()));
        self.verified_bytes += body.handle_bytes(ours)?;
        if body.left_bytes() == 0 {
            self.body = None;
            // A refused request is sent again.
            if self.refused.is_none() {
                self.replies += 1;
                awaiting.pop_front();
            }
        }
        Ok(rest)
    }
}

impl Head {
    /// What must follow, of the version that the entity tag names.
    fn expected(&self, asked: &Asked) -> Result<Expected, Violation> {
        let Asked { request, since } = asked;
        let Some(object) = request.object else {
            return Ok(request.expected());
        };
        if let Some(tag) = &self.entity_tag {
            let version = object.version_of(*since, tag).ok_or_else(|| {
                let (number, status) = (object.number, self.status);
                format!("a {status} with {tag}, no tag of object {number} from version {since} on")
            })?;
            return Ok(request.expected_of(version, tag));
        }
        // An error is of no version: any explains it.
        let versions = *since..=object.later.map_or(0, |later| later.times);
        let expected = |version| request.expected_of(version, &object.entity_tag(version));
        let mut all = versions.map(expected);
        let is_error = |expected: &Expected| expected.body == ExpectedBody::Text;
        let found = all.find(|expected| is_error(expected) && expected.status == self.status);
        Ok(found.unwrap_or_else(|| expected(*since)))
    }

    /// RFC 9110 s8.6 lets a server leave it out; ours never does where a body may follow.
    fn announced(&self) -> Result<u64, Violation> {
        self.content_length
            .ok_or_else(|| format!("a {} without Content-Length", self.status))
    }

    /// Whether lengths and ranges are those of the expected body.
    fn judge_body_fields(&self, expected: &Expected, announced: u64) -> Result<(), Violation> {
        match expected.body {
            ExpectedBody::Part {
                object,
                offset_bytes,
                length_bytes,
            } => {
                if announced != length_bytes {
                    return Err(format!(
                        "Content-Length {announced}, expected {length_bytes}"
                    ));
                }
                let range = (self.status == 206)
                    .then(|| content_range(&object, offset_bytes, length_bytes));
                if self.content_range != range {
                    return Err(format!(
                        "Content-Range {:?}, not {range:?}",
                        self.content_range
                    ));
                }
                Ok(())
            }
            ExpectedBody::Parts { .. } if self.boundary.is_none() => {
                Err("several parts without multipart/byteranges".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Parses a head without its blank line.
    fn parse(bytes: &[u8]) -> Result<Self, Violation> {
        let text =
            core::str::from_utf8(bytes).map_err(|_| "a head that is not UTF-8".to_owned())?;
        let mut lines = text.split("\r\n");
        let status_line = lines.next().unwrap_or_default();
        let status = status_line
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.get(..3))
            .and_then(|digits| digits.parse().ok())
            .ok_or_else(|| format!("status line {status_line:?}"))?;
        let mut head = Self {
            status,
            ..Self::default()
        };
        for line in lines {
            let (name, value) = line
                .split_once(':')
                .ok_or_else(|| format!("field line {line:?}"))?;
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "content-length" => {
                    let length = value.parse().map_err(|_| format!("field line {line:?}"))?;
                    if head.content_length.replace(length).is_some() {
                        return Err("two Content-Length fields".to_owned());
                    }
                }
                "content-type" => {
                    let boundary = value.strip_prefix("multipart/byteranges; boundary=");
                    head.boundary = boundary.map(str::to_owned);
                }
                "location" => head.location = Some(value.to_owned()),
                "etag" => head.entity_tag = Some(value.to_owned()),
                "content-range" => head.content_range = Some(value.to_owned()),
                "connection" => head.close |= value.eq_ignore_ascii_case("close"),
                "transfer-encoding" => return Err(format!("field line {line:?}")),
                _ => {}
            }
        }
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::super::plan::{
        Asked, Change, Condition, Instead, Later, ObjectPlan, Permits, RangePlan, RequestPlan,
    };
    use super::ReplyReader;
    use crate::content::Content;

    fn object() -> ObjectPlan {
        let content = Content::new(9, 1, 0);
        ObjectPlan {
            number: 1,
            content,
            later: None,
            size_bytes: 1000,
        }
    }

    fn asked(range: Option<RangePlan>, head: bool) -> RequestPlan {
        RequestPlan {
            object: Some(object()),
            head,
            range,
            ..RequestPlan::default()
        }
    }

    fn body(offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        object().content.fill(offset, &mut bytes);
        bytes
    }

    /// Feeds `stream` in parts of `step` bytes.
    fn read(
        stream: &[u8],
        step: usize,
        requests: &[RequestPlan],
        permits: Permits,
    ) -> Result<ReplyReader, String> {
        let mut reader = ReplyReader::default();
        let asked = |&request: &RequestPlan| Asked { request, since: 1 };
        let mut awaiting: VecDeque<_> = requests.iter().map(asked).collect();
        for part in stream.chunks(step) {
            reader.handle_bytes(part, &mut awaiting, permits)?;
        }
        Ok(reader)
    }

    #[test]
    fn two_replies_in_parts_of_any_size_are_read_whole() {
        let mut stream = b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n".to_vec();
        stream.extend(body(0, 1000));
        stream.extend(b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 5-9/1000\r\n");
        stream.extend(b"Connection: close\r\nContent-Length: 5\r\n\r\n");
        stream.extend(body(5, 5));
        let requests = [
            asked(None, false),
            asked(Some(RangePlan::FirstToLast(5, 9)), false),
        ];
        for step in [1, 3, 64, 5000] {
            let reader =
                read(&stream, step, &requests, Permits::default()).expect("all as it should be");
            assert_eq!((reader.replies, reader.verified_bytes), (2, 1005));
            assert!(reader.is_between_replies() && reader.last_reply);
        }
        let short = read(
            &stream[..stream.len() - 1],
            64,
            &requests,
            Permits::default(),
        )
        .expect("so far");
        assert!(!short.is_between_replies());
        stream.push(b'x');
        let surplus =
            read(&stream, 5000, &requests, Permits::default()).expect("no whole head yet");
        assert!(!surplus.is_between_replies());
    }

    /// The second of three versions was the last when they were asked for.
    #[test]
    fn a_reply_is_of_the_version_that_it_names_and_of_none_before_its_request() {
        let later = Later {
            added_bytes: 10,
            times: 2,
            ..Later::once(Change::Grown, object().content)
        };
        let grown = ObjectPlan {
            later: Some(later),
            ..object()
        };
        let of = |range| RequestPlan {
            object: Some(grown),
            ..asked(Some(range), false)
        };
        let [from, last, old] = [
            RangePlan::From(1015),
            RangePlan::Last(3),
            RangePlan::From(2000),
        ]
        .map(of);
        let resumed = RequestPlan {
            condition: Condition::FirstIfRange,
            ..from
        };
        let [first, second, third] = [0, 1, 2].map(|version| grown.entity_tag(version));
        let weak = third.replace('-', ".7-");
        let end = body(1017, 3);
        let (part, whole) = (body(1015, 5), body(0, 1020));
        for (request, line, tag, range, body, is_right) in [
            (from, "206", &third, "bytes 1015-1019/1020", &part[..], true),
            (
                from,
                "206",
                &format!("W/{weak}"),
                "bytes 1015-1019/1020",
                &part,
                true,
            ),
            (from, "206", &weak, "bytes 1015-1019/1020", &part, false),
            (from, "206", &second, "bytes 1015-1019/1020", &part, false),
            (last, "206", &third, "bytes 1017-1019/1020", &end, true),
            (
                last,
                "206",
                &third,
                "bytes 1007-1009/1010",
                &body(1007, 3),
                false,
            ),
            (
                last,
                "206",
                &second,
                "bytes 1007-1009/1010",
                &body(1007, 3),
                true,
            ),
            (
                last,
                "206",
                &first,
                "bytes 997-999/1000",
                &body(997, 3),
                false,
            ),
            (resumed, "200", &third, "", &whole, true),
            (resumed, "206", &third, "bytes 1015-1019/1020", &part, false),
            (old, "416", &String::new(), "", b"old", true),
            (old, "200", &third, "", &whole, false),
            // The second has no such byte, the third has.
            (from, "416", &String::new(), "", b"old", true),
            (last, "416", &String::new(), "", b"old", false),
        ] {
            let length = body.len();
            let field = |name, value: &str| match value {
                "" => String::new(),
                _ => format!("{name}: {value}\r\n"),
            };
            let fields = [field("ETag", tag), field("Content-Range", range)].concat();
            let head = format!("HTTP/1.1 {line} x\r\nContent-Length: {length}\r\n{fields}\r\n");
            let stream = [head.as_bytes(), body].concat();
            let judged = read(&stream, 100, &[request], Permits::default());
            let judged = judged.map(|reader| reader.replies);
            assert_eq!(judged == Ok(1), is_right, "{head} {judged:?}");
        }
    }

    #[test]
    fn a_head_reply_has_no_body_but_its_length() {
        let stream = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n";
        let reader = read(stream, 7, &[asked(None, true)], Permits::default()).expect("whole");
        assert_eq!((reader.replies, reader.verified_bytes), (1, 0));
        let wrong = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        assert!(read(wrong, 7, &[asked(None, true)], Permits::default()).is_err());
    }

    #[test]
    fn wrong_bytes_lengths_ranges_and_heads_are_violations() {
        let mut stream = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n".to_vec();
        stream.extend(body(0, 1000));
        *stream.last_mut().expect("not empty") ^= 0x40;
        let complaint =
            read(&stream, 100, &[asked(None, false)], Permits::default()).expect_err("wrong");
        assert!(
            complaint.contains("wrong byte at offset 999"),
            "{complaint}"
        );
        let range = [asked(Some(RangePlan::From(5)), false)];
        for head in [
            "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
            "HTTP/1.1 206 P\r\nContent-Length: 995\r\n\r\n",
            "HTTP/1.1 206 P\r\nContent-Length: 995\r\nContent-Range: bytes 5-999/999\r\n\r\n",
            "HTTP/1.1 206 P\r\nContent-Length: 994\r\nContent-Range: bytes 5-999/1000\r\n\r\n",
            "HTTP/1.1 206 P\r\nContent-Range: bytes 5-999/1000\r\n\r\n",
            "HTTP/1.1 206 P\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 206 P\r\nnonsense\r\n\r\n",
            "HTTP/1.0 206 P\r\n\r\n",
        ] {
            assert!(
                read(head.as_bytes(), 9, &range, Permits::default()).is_err(),
                "{head}"
            );
        }
        assert!(read(&[b'x'; 5000], 500, &range, Permits::default()).is_err());
        let empty = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        assert!(read(empty, 9, &[], Permits::default()).is_err());
    }

    #[test]
    fn a_redirect_must_lead_to_the_directory() {
        let request = RequestPlan {
            object: None,
            instead: Instead::DirectoryWithoutSlash,
            ..asked(None, false)
        };
        let judge = |fields: &str| {
            let stream = format!("HTTP/1.1 301 Moved\r\n{fields}Content-Length: 0\r\n\r\n");
            read(stream.as_bytes(), 9, &[request], Permits::default()).map(|reader| reader.replies)
        };
        assert_eq!(judge("Location: /objects/\r\n"), Ok(1));
        assert!(judge("Location: /objects\r\n").is_err());
        assert!(judge("").is_err());
        let elsewhere = b"HTTP/1.1 200 OK\r\nLocation: /objects/\r\nContent-Length: 1000\r\n\r\n";
        assert!(read(elsewhere, 9, &[asked(None, false)], Permits::default()).is_err());
    }

    #[test]
    fn refusals_count_only_where_they_are_permitted() {
        for (status, permits) in [
            (
                408,
                Permits {
                    lateness: true,
                    ..Permits::default()
                },
            ),
            (
                500,
                Permits {
                    broken_replies: true,
                    ..Permits::default()
                },
            ),
            (
                503,
                Permits {
                    busy: true,
                    ..Permits::default()
                },
            ),
        ] {
            let stream = format!("HTTP/1.1 {status} x\r\nContent-Length: 3\r\n\r\nabc");
            let asked = [asked(None, false)];
            let reader = read(stream.as_bytes(), 4, &asked, permits).expect("permitted");
            assert_eq!((reader.refused, reader.replies), (Some(status), 0));
            assert!(read(stream.as_bytes(), 4, &asked, Permits::default()).is_err());
        }
    }
}
