//! The rules of explicit congestion notification for the sender (RFC 3168 s6.1.2), as a capture shows
//! them: which packets are ECT, and that each echo is answered by CWR, once for each window of data.
//!
//! It refuses to look into the server. Bounded: [`FAULTS_MAX`].

use wire::{Ecn, TcpFlags};

/// Most faults that are kept; one is enough.
const FAULTS_MAX: usize = 8;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    /// The SYN-ACK had ECE.
    is_agreed: bool,
    /// Where the last segment with CWR starts.
    told_at: Option<u64>,
    /// An echo arrived that asks for a reduction, and no new data was sent after it.
    owes_cwr: bool,
    /// Since the last CWR a loss was seen, which is another reason for one: see [`Marks::on_hole`] and
    /// [`Marks::on_data`].
    has_loss: bool,
    /// Everything before it was acknowledged.
    una: u64,
    reductions: u64,
    faults: Vec<String>,
}

impl Marks {
    /// The SYN-ACK was sent.
    pub(crate) fn on_syn_ack(&mut self, flags: TcpFlags, ecn: Ecn) {
        self.is_agreed = flags.contains(TcpFlags::ECE);
        self.expect(ecn == Ecn::NotEct, || "a SYN-ACK is ECT".to_owned());
    }

    /// A segment without data was sent.
    pub(crate) fn on_control(&mut self, ecn: Ecn) {
        let is_right = ecn == Ecn::NotEct;
        self.expect(is_right, || "a segment without data is ECT".to_owned());
    }

    /// A segment of data was sent that starts at an offset of the stream.
    pub(crate) fn on_data(&mut self, start: u64, is_again: bool, flags: TcpFlags, ecn: Ecn) {
        let wanted = if self.is_agreed && !is_again {
            Ecn::Ect0
        } else {
            Ecn::NotEct
        };
        self.expect(ecn == wanted, || {
            format!("the segment at {start} is {ecn:?}")
        });
        let has_cwr = flags.contains(TcpFlags::CWR);
        if is_again {
            // What was sent after the last CWR is lost; or the timer fired, for all that a capture shows.
            let is_of_this_window = self.is_told_of(start) || start <= self.una;
            self.has_loss |= is_of_this_window;
            self.expect(!has_cwr, || format!("CWR on a retransmission at {start}"));
            return;
        }
        let (owes, may) = (self.owes_cwr, self.has_loss);
        self.expect(has_cwr || !owes, || {
            format!("no CWR at {start} after an echo")
        });
        self.expect(!has_cwr || owes || may, || {
            format!("CWR at {start} without an echo")
        });
        if has_cwr {
            self.owes_cwr = false;
            self.has_loss = false;
            self.told_at = Some(start);
            self.reductions += 1;
        }
    }

    /// An ACK of everything before an offset reached the server.
    pub(crate) fn on_ack(&mut self, ack: u64, flags: TcpFlags) {
        self.una = self.una.max(ack);
        let is_told = self.told_at.is_none_or(|at| ack > at);
        self.owes_cwr |= self.is_agreed && flags.contains(TcpFlags::ECE) && is_told;
    }

    /// An ACK of everything before an offset shows that something behind it arrived and it did not: by
    /// SACK, or as a duplicate. The sender may reduce its window now and send new data before it has read
    /// again from the disk what is missing (RFC 3168 s6.1.2: CWR on the first new data after any
    /// reduction). Not twice for one window of data.
    pub(crate) fn on_hole(&mut self, ack: u64) {
        self.has_loss |= self.is_told_of(ack);
    }

    /// Whether a byte is not before the last CWR.
    fn is_told_of(&self, offset: u64) -> bool {
        self.told_at.is_none_or(|at| offset >= at)
    }

    /// Segments with CWR: so often was the window reduced.
    pub(crate) const fn reductions(&self) -> u64 {
        self.reductions
    }

    /// Which rules were broken.
    pub(crate) fn faults(&self) -> &[String] {
        &self.faults
    }

    fn expect(&mut self, is_right: bool, fault: impl FnOnce() -> String) {
        if !is_right && self.faults.len() < FAULTS_MAX {
            self.faults.push(fault());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Marks;
    use wire::{Ecn, TcpFlags};

    const DATA: TcpFlags = TcpFlags::ACK;
    const CWR: TcpFlags = TcpFlags::CWR;
    const ECE: TcpFlags = TcpFlags::ECE;

    fn agreed() -> Marks {
        let mut marks = Marks::default();
        marks.on_syn_ack(ECE, Ecn::NotEct);
        marks
    }

    /// What is wrong with new data that is sent after these ACKs, behind a CWR at 1000.
    fn after(acks: &[(u64, TcpFlags)], flags: TcpFlags) -> usize {
        let mut marks = agreed();
        marks.on_ack(0, ECE);
        marks.on_data(1000, false, CWR, Ecn::Ect0);
        for (ack, flags) in acks {
            marks.on_ack(*ack, *flags);
        }
        marks.on_data(5000, false, flags, Ecn::Ect0);
        marks.faults().len()
    }

    #[test]
    fn an_echo_that_goes_beyond_the_last_cwr_is_answered_and_no_other() {
        assert_eq!(after(&[], DATA), 0);
        assert_eq!(after(&[], CWR), 1);
        assert_eq!(after(&[(1000, ECE)], DATA), 0);
        assert_eq!(after(&[(1000, ECE)], CWR), 1);
        assert_eq!(after(&[(1001, ECE)], CWR), 0);
        assert_eq!(after(&[(1001, ECE)], DATA), 1);
        assert_eq!(after(&[(1001, ECE), (1002, DATA)], DATA), 1);
    }

    /// CWR at 1000; then what happens; then CWR at 5000. How many faults that makes.
    fn after_loss(happens: impl FnOnce(&mut Marks)) -> usize {
        let mut marks = agreed();
        marks.on_ack(0, ECE);
        marks.on_data(1000, false, CWR, Ecn::Ect0);
        marks.on_data(2000, false, DATA, Ecn::Ect0);
        marks.on_ack(500, DATA);
        happens(&mut marks);
        marks.on_data(5000, false, CWR, Ecn::Ect0);
        marks.faults().len()
    }

    #[test]
    fn a_loss_of_what_was_sent_since_the_last_cwr_is_a_reason_for_another() {
        let resent = |start| move |marks: &mut Marks| marks.on_data(start, true, DATA, Ecn::NotEct);
        assert_eq!(after_loss(resent(1000)), 0);
        assert_eq!(after_loss(resent(999)), 1, "of the window that was reduced");
        assert_eq!(after_loss(resent(501)), 1);
        assert_eq!(after_loss(resent(500)), 0, "the timer may have fired");
        let hole = |ack| move |marks: &mut Marks| marks.on_hole(ack);
        assert_eq!(after_loss(hole(1000)), 0);
        assert_eq!(after_loss(hole(999)), 1);
        // And only for one.
        assert_eq!(
            after_loss(|marks| {
                marks.on_hole(1000);
                marks.on_data(4000, false, CWR, Ecn::Ect0);
            }),
            1
        );
    }

    #[test]
    fn only_new_data_is_ect() {
        let mut marks = agreed();
        marks.on_data(0, false, DATA, Ecn::Ect0);
        marks.on_data(0, true, DATA, Ecn::NotEct);
        marks.on_control(Ecn::NotEct);
        assert_eq!(marks.faults().len(), 0);
        marks.on_data(0, false, DATA, Ecn::NotEct);
        marks.on_data(0, true, DATA, Ecn::Ect0);
        marks.on_control(Ecn::Ect0);
        marks.on_syn_ack(ECE, Ecn::Ect0);
        assert_eq!(marks.faults().len(), 4);
        let mut marks = Marks::default();
        marks.on_syn_ack(DATA, Ecn::NotEct);
        marks.on_data(0, false, DATA, Ecn::Ect0);
        assert_eq!(marks.faults().len(), 1, "without agreement");
    }
}
