//! Runs of records are the records.

use proptest::prelude::*;

use super::{DATA, SUITES, Suite, content};
use crate::{RUN_RECORDS_MAX, seal_run};

const COUNT_MAX: usize = RUN_RECORDS_MAX as usize;

/// Seals contents that stand back to back.
fn sealed(suite: &Suite, contents: &[u8], content_bytes: usize, count: usize) -> Vec<u8> {
    let sealer = suite.sealer();
    let framing = sealer.framing();
    let mut run = vec![0xee; framing.header_bytes as usize];
    run.extend_from_slice(contents);
    let bytes = contents.len() + count * framing.overhead_bytes() as usize;
    run.resize(bytes, 0xee);
    let content_bytes = u32::try_from(content_bytes).unwrap();
    let tags = seal_run(&sealer, 5, content_bytes, &mut run);
    assert_eq!(tags.iter().flatten().count(), count);
    run
}

fn records(suite: &Suite, contents: &[u8], content_bytes: usize) -> Vec<u8> {
    let records = (5..).zip(contents.chunks(content_bytes));
    records
        .flat_map(|(number, content)| suite.record(number, DATA, content))
        .collect()
}

#[test]
fn a_run_of_the_usual_size_is_its_records() {
    for suite in SUITES {
        for bytes in [1, 15_360, 15_361, 4 * 15_360] {
            let contents = content(bytes);
            let run = sealed(&suite, &contents, 15_360, bytes.div_ceil(15_360));
            assert!(
                run == records(&suite, &contents, 15_360),
                "{suite:?} {bytes}"
            );
        }
        let most = content(COUNT_MAX * 4096);
        let run = sealed(&suite, &most, 4096, COUNT_MAX);
        assert!(run == records(&suite, &most, 4096), "{suite:?}");
    }
}

#[test]
#[should_panic(expected = "17 records in a run")]
fn a_record_too_many_is_refused() {
    sealed(&SUITES[0], &content(17), 1, 17);
}

#[test]
#[should_panic(expected = "a record has room for its header")]
fn a_last_record_without_room_for_its_header_is_refused() {
    let sealer = SUITES[0].sealer();
    seal_run(&sealer, 0, 4, &mut [0; 4 + 22 + 4]);
}

proptest! {
    #[test]
    fn any_run_is_its_records(
        choice in 0..SUITES.len(),
        content_bytes in 1_usize..3000,
        count in 1_usize..=COUNT_MAX,
        last_bytes in 1_usize..3000,
    ) {
        let suite = SUITES[choice];
        let contents = content((count - 1) * content_bytes + last_bytes.min(content_bytes));
        let run = sealed(&suite, &contents, content_bytes, count);
        prop_assert_eq!(run, records(&suite, &contents, content_bytes));
    }
}
