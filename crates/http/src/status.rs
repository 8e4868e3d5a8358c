//! The status codes this server sends (RFC 9110 s15), and no others.

/// A status code this server sends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Status {
    /// 200: the whole object follows.
    Ok,
    /// 206: one or more ranges follow.
    PartialContent,
    /// 301: a directory, asked for without its final slash, or an object that is elsewhere.
    MovedPermanently,
    /// 302: for now the object is elsewhere.
    Found,
    /// 304: the client's copy is current.
    NotModified,
    /// 307: as 302; the client keeps its method.
    TemporaryRedirect,
    /// 308: as 301; the client keeps its method.
    PermanentRedirect,
    /// 400: the head breaks the grammar or could mean two things.
    BadRequest,
    /// 403: the object may not be read, or not by this client.
    Forbidden,
    /// 404: no such object.
    NotFound,
    /// 405: a method of HTTP that no object here supports.
    MethodNotAllowed,
    /// 408: the head did not arrive in time.
    RequestTimeout,
    /// 410: the operator says that there is no such object any more.
    Gone,
    /// 412: `If-Match` or `If-Unmodified-Since` is false.
    PreconditionFailed,
    /// 413: the request carries a body that is longer than [`crate::BODY_BYTES_MAX`], or chunked.
    ContentTooLarge,
    /// 414: the target is longer than [`crate::TARGET_BYTES_MAX`].
    UriTooLong,
    /// 416: no range asked for overlaps the object.
    RangeNotSatisfiable,
    /// 417: an expectation other than `100-continue`.
    ExpectationFailed,
    /// 421: the operator serves no site of that name.
    MisdirectedRequest,
    /// 429: the client's network has as many connections or requests as it may have (RFC 6585 s4).
    TooManyRequests,
    /// 431: too many header fields, or too many bytes of them.
    RequestHeaderFieldsTooLarge,
    /// 500: reading the object failed.
    InternalServerError,
    /// 501: not a method of HTTP.
    NotImplemented,
    /// 503: every slot of some table is in use.
    ServiceUnavailable,
    /// 505: a major version other than 1.
    HttpVersionNotSupported,
}

impl Status {
    /// Every status, in the order of their codes.
    pub const ALL: [Self; 25] = [
        Self::Ok,
        Self::PartialContent,
        Self::MovedPermanently,
        Self::Found,
        Self::NotModified,
        Self::TemporaryRedirect,
        Self::PermanentRedirect,
        Self::BadRequest,
        Self::Forbidden,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::RequestTimeout,
        Self::Gone,
        Self::PreconditionFailed,
        Self::ContentTooLarge,
        Self::UriTooLong,
        Self::RangeNotSatisfiable,
        Self::ExpectationFailed,
        Self::MisdirectedRequest,
        Self::TooManyRequests,
        Self::RequestHeaderFieldsTooLarge,
        Self::InternalServerError,
        Self::NotImplemented,
        Self::ServiceUnavailable,
        Self::HttpVersionNotSupported,
    ];

    /// The three-digit code.
    #[must_use]
    pub const fn code(self) -> u16 {
        match self {
            Self::Ok => 200,
            Self::PartialContent => 206,
            Self::MovedPermanently => 301,
            Self::Found => 302,
            Self::NotModified => 304,
            Self::TemporaryRedirect => 307,
            Self::PermanentRedirect => 308,
            Self::BadRequest => 400,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::RequestTimeout => 408,
            Self::Gone => 410,
            Self::PreconditionFailed => 412,
            Self::ContentTooLarge => 413,
            Self::UriTooLong => 414,
            Self::RangeNotSatisfiable => 416,
            Self::ExpectationFailed => 417,
            Self::MisdirectedRequest => 421,
            Self::TooManyRequests => 429,
            Self::RequestHeaderFieldsTooLarge => 431,
            Self::InternalServerError => 500,
            Self::NotImplemented => 501,
            Self::ServiceUnavailable => 503,
            Self::HttpVersionNotSupported => 505,
        }
    }

    /// Code and reason phrase, as in a status line.
    #[must_use]
    pub const fn line(self) -> &'static str {
        match self {
            Self::Ok => "200 OK",
            Self::PartialContent => "206 Partial Content",
            Self::MovedPermanently => "301 Moved Permanently",
            Self::Found => "302 Found",
            Self::NotModified => "304 Not Modified",
            Self::TemporaryRedirect => "307 Temporary Redirect",
            Self::PermanentRedirect => "308 Permanent Redirect",
            Self::BadRequest => "400 Bad Request",
            Self::Forbidden => "403 Forbidden",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::RequestTimeout => "408 Request Timeout",
            Self::Gone => "410 Gone",
            Self::PreconditionFailed => "412 Precondition Failed",
            Self::ContentTooLarge => "413 Content Too Large",
            Self::UriTooLong => "414 URI Too Long",
            Self::RangeNotSatisfiable => "416 Range Not Satisfiable",
            Self::ExpectationFailed => "417 Expectation Failed",
            Self::MisdirectedRequest => "421 Misdirected Request",
            Self::TooManyRequests => "429 Too Many Requests",
            Self::RequestHeaderFieldsTooLarge => "431 Request Header Fields Too Large",
            Self::InternalServerError => "500 Internal Server Error",
            Self::NotImplemented => "501 Not Implemented",
            Self::ServiceUnavailable => "503 Service Unavailable",
            Self::HttpVersionNotSupported => "505 HTTP Version Not Supported",
        }
    }

    /// Whether this status refuses the request (4xx and 5xx), and so may go to
    /// [`crate::error_reply`].
    #[must_use]
    pub const fn is_error(self) -> bool {
        self.code() >= 400
    }
}

#[cfg(test)]
mod tests {
    use super::Status;

    #[test]
    fn every_line_opens_with_its_code_and_codes_ascend() {
        let mut previous = 0;
        for status in Status::ALL {
            let code = status.code();
            assert!(code > previous, "{status:?}");
            assert!(status.line().starts_with(&format!("{code} ")), "{status:?}");
            assert_eq!(status.is_error(), code >= 400);
            previous = code;
        }
    }
}
