//! Every script is a test of its name. A script that is not listed here is a failure, too.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts")
}

fn pass(name: &str) {
    let path = folder().join(format!("{name}.drill"));
    if let Err(error) = drill::run_file(&path) {
        panic!("{error}");
    }
}

/// One test for each name.
macro_rules! scripts {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                pass(stringify!($name));
            }
        )*

        const LISTED: &[&str] = &[$(stringify!($name)),*];
    };
}

scripts! {
    challenge_ack_of_what_was_never_sent
    challenge_ack_that_is_too_old
    challenge_not_for_text
    challenge_rate
    challenge_reset_in_the_window
    challenge_syn
    close_both_at_once
    close_fin_is_never_acknowledged
    close_fin_is_sent_again
    close_fin_wait_2_ends
    close_fin_wait_2_in_the_last_moment
    close_fin_wait_2_new_connection
    close_fin_wait_new_connection
    close_half_closed
    close_idle_connection
    close_last_ack_new_connection
    close_peer_first
    close_server_first
    credit_ack_read_segment
    credit_almost_the_end_of_the_object_waits
    credit_end_of_the_object_never_waits
    credit_initial_window
    credit_pipelined_requests
    credit_read_ends_inside_a_block
    credit_read_ends_with_a_block
    credit_read_is_at_most_a_frame
    credit_waits_for_a_third_of_the_window
    cubic_curve
    cubic_idle_for_a_timeout
    cubic_idle_for_long
    cubic_idle_for_more_than_a_timeout
    cubic_idle_keeps_the_window
    cubic_slow_start
    cubic_window_that_is_in_use
    cubic_window_that_is_not_in_use
    delayed_ack_before_slow_data
    delayed_ack_goes_with_data
    delayed_ack_of_a_first_segment
    delayed_ack_out_of_order_at_once
    delayed_ack_second_segment_at_once
    disk_answers_after_a_reset
    disk_answers_out_of_order
    disk_every_retransmission_is_a_read
    disk_fails
    disk_is_slow
    disk_is_slow_to_read_again
    disk_last_block_is_not_full
    disk_object_has_changed
    disk_one_slot
    disk_queue_is_full
    disk_reads_again_for_nothing
    disk_reads_less_than_needed
    ecn_cwr_after_a_fast_retransmit
    ecn_echo_reduces_once_a_window
    ecn_is_agreed
    ecn_loss_in_the_window_of_an_echo
    ecn_marked_request_is_echoed
    ecn_needs_both_bits
    ecn_syn_again_without_it
    ecn_syn_that_is_ect
    handshake_ack_in_the_last_moment
    handshake_ack_of_something_else
    handshake_half_open_new_connection
    handshake_lost_syn_ack_timeout
    handshake_port_without_a_listener
    handshake_request_with_the_ack
    handshake_reset_of_a_half_open_connection
    handshake_segments_without_a_connection
    handshake_syn_ack_is_retransmitted
    handshake_syn_ack_lost_twice
    handshake_syn_comes_again
    handshake_syn_twice_timeout
    handshake_three_way
    keepalive_is_answered
    keepalive_not_while_data_are_in_flight
    keepalive_probes_an_idle_peer
    limited_transmit
    mtu_black_hole_after_large_packets_arrived
    mtu_black_hole_not_of_the_base
    mtu_black_hole_of_the_first_packets
    mtu_black_hole_probing_is_off
    mtu_black_hole_with_timestamps
    mtu_probe_is_early
    mtu_probe_is_lost_alone
    mtu_probe_is_lost_with_others
    mtu_probe_raises_the_size
    mtu_report_about_nothing_in_flight
    mtu_report_after_larger_packets_arrived
    mtu_report_below_the_least
    mtu_report_is_obeyed_at_once
    mtu_report_is_refuted
    mtu_report_that_is_not_smaller
    options_all_are_agreed
    options_ecn_is_not_agreed
    options_mss_absent
    options_mss_below_the_least
    options_mss_of_our_link
    options_mss_of_the_peer
    options_none_are_agreed
    options_paws_drops_an_old_segment
    options_timestamp_echo_of_the_first_delayed
    options_timestamp_is_missing
    options_timestamp_is_missing_at_a_reset
    options_timestamp_of_a_segment_beyond_a_hole
    options_timestamps_are_removed_from_our_syn_ack
    options_timestamps_shorten_segments
    options_window_scale
    options_window_scale_of_the_syn_is_not_used
    pacing_off
    pacing_window_in_quanta
    persist_answered_probes_never_end
    persist_probes_a_closed_window
    persist_send_timeout
    persist_unanswered_probes_end
    persist_window_opens
    rack_dsack_counts_once_a_round_trip
    rack_dsack_lengthens_the_wait
    rack_lost_retransmission
    rack_reordered_segment_comes_in_time
    rack_two_segments_above_a_hole_wait
    rack_waits_always_once_reordering_was_seen
    reduction_back_to_ssthresh
    reduction_ends_at_ssthresh
    reduction_first_retransmission_at_once
    reduction_five_for_ten
    reduction_not_more_than_delivered
    reduction_once_for_a_window_of_losses
    reduction_seven_for_ten
    reno_half_after_a_loss
    reno_one_segment_each_round_trip
    reset_exactly_at_the_next_number
    reset_outside_the_window
    sack_block_ends_inside_a_segment
    sack_block_of_what_was_never_sent
    sack_not_agreed_partial_acks
    sack_not_agreed_window_updates_are_no_duplicates
    sack_reneging
    sack_three_segments_above_a_hole
    sack_two_holes
    sack_useless_blocks_count_as_duplicates
    sack_useless_for_a_while
    sack_was_not_agreed
    spurious_frto
    spurious_frto_genuine
    spurious_timeout_while_the_disk_reads
    spurious_timestamp_of_the_first_sending
    spurious_timestamp_of_the_second_sending
    sws_half_of_the_largest_window
    sws_last_bytes
    sws_least_of_536_bytes
    sws_not_quite_the_last_bytes
    sws_override_timer
    tail_probe_ack_postpones_it
    tail_probe_needs_sack
    tail_probe_not_later_than_the_timeout
    tail_probe_of_a_single_segment
    tail_probe_of_two_segments
    tail_probe_repairs_a_loss_and_reduces
    tail_probe_sends_new_data
    tail_probe_sends_the_last_segment_again
    tail_probe_shows_a_loss
    tail_probe_then_timeout
    tail_probe_was_needless_and_reduces_nothing
    time_wait_answers_a_fin
    time_wait_ends
    time_wait_ignores_resets
    time_wait_new_connection
    time_wait_new_connection_after_a_reset
    time_wait_new_connection_by_timestamp
    time_wait_new_connection_soon
    timeout_backoff_ends_with_a_timestamp
    timeout_backoff_stays_without_a_sample
    timeout_does_not_count_the_disk
    timeout_doubles
    timeout_follows_the_variance
    timeout_gives_up
    timeout_has_a_variance_term_of_at_least_200_ms
    timeout_has_not_given_up
    timeout_restarts_with_an_ack_of_new_data
    timeout_sends_the_oldest_segment
    timeout_slow_start
    undo_by_an_early_ack
    undo_by_dsack
    undo_needs_every_report
    window_limits_what_is_in_flight
    window_of_an_old_segment
    window_of_ours
    window_that_shrinks
    window_update_without_an_acknowledgment
}

#[test]
fn every_script_is_listed() {
    let files: BTreeSet<String> = fs::read_dir(folder())
        .expect("the folder of the scripts")
        .map(|entry| entry.expect("an entry of the folder").path())
        .map(|path| {
            let name = path.file_stem().expect("a file's name");
            name.to_string_lossy().into_owned()
        })
        .collect();
    let listed: BTreeSet<String> = LISTED.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(files, listed);
}
