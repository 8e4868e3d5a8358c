//! The registers and doorbells of the emulated controller, and the rules for writing them.

use clock::Duration;

use super::super::registers::{
    ACQ, ALL_ONES, AQA, ASQ, CAP, CC, CC_ENABLE, CC_ENTRY_SIZES, CC_SHUTDOWN_MASK,
    CC_SHUTDOWN_NORMAL, CSTS, DOORBELLS, INTMS, VS,
};
use super::{CompletionQueue, Event, RegisterFile, State, Submission};

/// How long a shutdown takes.
const SHUTDOWN_LATENCY: Duration = Duration::from_millis(5);
/// The upper half of CAP.
const CAP_HIGH: u64 = CAP + 4;

impl State {
    fn capabilities(&self) -> u64 {
        let config = &self.config;
        let fields = u64::from(config.queue_entries_max - 1)
            | 1 << 16
            | 2 << 24
            | u64::from(config.doorbell_stride) << 32
            | 1 << 37;
        config.capabilities.unwrap_or(fields)
    }

    pub(super) fn read_register(&mut self, offset_bytes: u64) -> u32 {
        if self.registers.is_gone {
            return ALL_ONES;
        }
        let [low, high] = {
            let [a, b, c, d, e, f, g, h] = self.capabilities().to_le_bytes();
            [[a, b, c, d], [e, f, g, h]].map(u32::from_le_bytes)
        };
        let registers = &self.registers;
        match offset_bytes {
            CAP => low,
            CAP_HIGH => high,
            VS => self.config.version,
            CC => registers.cc,
            AQA => registers.aqa,
            CSTS => {
                u32::from(registers.is_ready)
                    | u32::from(registers.is_fatal) << 1
                    | registers.shutdown_status << 2
            }
            other => {
                self.violation(format_args!("reads register {other:#x}"));
                0
            }
        }
    }

    pub(super) fn write_register(&mut self, offset_bytes: u64, value: u32) {
        if self.registers.is_gone {
            return;
        }
        match offset_bytes {
            INTMS => self.registers.interrupt_mask |= value,
            CC => self.configure(value),
            AQA if self.is_disabled("AQA") => self.registers.aqa = value,
            AQA => {}
            DOORBELLS.. => self.ring(offset_bytes - DOORBELLS, value),
            other => self.violation(format_args!("writes register {other:#x}")),
        }
    }

    pub(super) fn write_wide_register(&mut self, offset_bytes: u64, value: u64) {
        if self.registers.is_gone {
            return;
        }
        match offset_bytes {
            ASQ if self.is_disabled("ASQ") => self.registers.asq = value,
            ACQ if self.is_disabled("ACQ") => self.registers.acq = value,
            ASQ | ACQ => {}
            other => self.violation(format_args!("writes register {other:#x}")),
        }
    }

    /// Whether the admin queues may be configured.
    fn is_disabled(&mut self, register: &str) -> bool {
        let is_disabled = self.registers.cc & CC_ENABLE == 0 && !self.registers.is_ready;
        if !is_disabled {
            self.violation(format_args!("writes {register} while enabled"));
        }
        is_disabled
    }

    fn configure(&mut self, value: u32) {
        let before = self.registers.cc;
        self.registers.is_reset_by_others = false;
        let was_enabled = before & CC_ENABLE != 0;
        let is_enabled = value & CC_ENABLE != 0;
        match (was_enabled, is_enabled) {
            (false, false) => self.registers.cc = value,
            (false, true) => self.enable(value),
            (true, false) => self.disable(value),
            (true, true) => {
                if (before ^ value) & !CC_SHUTDOWN_MASK != 0 {
                    self.violation(format_args!("changes CC to {value:#x} while enabled"));
                }
                self.registers.cc = value;
                if value & CC_SHUTDOWN_MASK == CC_SHUTDOWN_NORMAL {
                    self.shut_down();
                }
            }
        }
    }

    fn enable(&mut self, value: u32) {
        if self.registers.is_ready {
            self.violation("enables a controller that has not stopped");
        }
        if value & !(CC_ENABLE | CC_SHUTDOWN_MASK) != CC_ENTRY_SIZES {
            self.violation(format_args!("configures CC as {value:#x}"));
        }
        let RegisterFile { aqa, asq, acq, .. } = self.registers;
        let (submissions, completions) = ((aqa & 0xfff) + 1, (aqa >> 16 & 0xfff) + 1);
        if submissions < 2 || completions < 2 || asq % 4096 != 0 || acq % 4096 != 0 {
            self.violation(format_args!(
                "admin queues: AQA {aqa:#x}, ASQ {asq:#x}, ACQ {acq:#x}"
            ));
        }
        self.registers.cc = value;
        self.registers.shutdown_status = 0;
        self.registers.is_fatal = false;
        self.submissions.insert(
            0,
            Submission {
                address: asq,
                entry_count: submissions,
                head: 0,
                completion_queue: 0,
            },
        );
        self.completions.insert(
            0,
            CompletionQueue {
                address: acq,
                entry_count: completions,
                head: 0,
                tail: 0,
                phase: true,
            },
        );
        if self.faults.starts_ignored > 0 {
            self.faults.starts_ignored -= 1;
        } else {
            self.schedule(self.config.ready_latency, Event::Ready(true));
        }
    }

    fn disable(&mut self, value: u32) {
        if self.faults.stops_refused > 0 {
            self.faults.stops_refused -= 1;
            return;
        }
        self.registers.cc = value;
        // Until it says that it has stopped, it goes on with what it has.
        self.events
            .retain(|_, event| !matches!(event, Event::Ready(_)));
        if self.registers.is_ready {
            self.schedule(self.config.ready_latency, Event::Ready(false));
        } else {
            self.registers.interrupt_mask = 0;
            self.clear();
        }
    }

    pub(super) fn change_ready(&mut self, is_ready: bool) {
        self.registers.is_ready = is_ready;
        if !is_ready {
            // A reset leaves the admin queues' registers as they are, and no others.
            self.registers.interrupt_mask = 0;
            self.counters.stops += 1;
            self.registers.is_fatal = false;
            self.registers.shutdown_status = 0;
            self.clear();
        }
    }

    fn shut_down(&mut self) {
        if self.submissions.len() > 1 || self.completions.len() > 1 {
            self.violation("notifies of a shutdown while there are I/O queues");
        }
        self.counters.shutdowns += 1;
        self.registers.shutdown_status = 0b01;
        self.schedule(SHUTDOWN_LATENCY, Event::ShutDown);
    }

    pub(super) fn reset_function(&mut self) -> bool {
        if self.faults.is_function_reset_refused {
            return false;
        }
        self.clear();
        self.events.clear();
        self.registers = RegisterFile {
            is_gone: self.registers.is_gone,
            ..RegisterFile::default()
        };
        true
    }

    fn ring(&mut self, offset_bytes: u64, value: u32) {
        let stride_bytes = 4_u64 << self.config.doorbell_stride;
        let number = offset_bytes / stride_bytes;
        let queue_id = u16::try_from(number / 2).unwrap_or(u16::MAX);
        if self.registers.is_reset_by_others {
            return;
        }
        if !offset_bytes.is_multiple_of(stride_bytes) {
            self.violation(format_args!(
                "rings between doorbells, at {offset_bytes:#x}"
            ));
        } else if !self.registers.is_ready || self.registers.cc & CC_ENABLE == 0 {
            self.violation(format_args!(
                "rings doorbell {number} of a controller not ready"
            ));
        } else if number.is_multiple_of(2) {
            self.ring_submission(queue_id, value);
        } else {
            self.ring_completion(queue_id, value);
        }
    }

    fn ring_submission(&mut self, queue_id: u16, tail: u32) {
        if core::mem::take(&mut self.is_unfenced) {
            self.violation("rings a doorbell without a fence behind what it wrote");
        }
        let Some(queue) = self.submissions.get(&queue_id).copied() else {
            return self.violation(format_args!(
                "rings submission queue {queue_id}, which is not"
            ));
        };
        if tail >= queue.entry_count || tail == queue.head {
            return self.violation(format_args!(
                "rings {tail} on submission queue {queue_id} of {} at {}",
                queue.entry_count, queue.head
            ));
        }
        if self.registers.is_fatal {
            return;
        }
        self.counters.doorbells += u64::from(queue_id != 0);
        let mut head = queue.head;
        while head != tail {
            let address = queue.address + u64::from(head) * 64;
            head = (head + 1) % queue.entry_count;
            if let Some(queue) = self.submissions.get_mut(&queue_id) {
                queue.head = head;
            }
            self.fetch(queue_id, address);
        }
    }

    fn ring_completion(&mut self, queue_id: u16, head: u32) {
        let Some(queue) = self.completions.get_mut(&queue_id) else {
            return self.violation(format_args!(
                "rings completion queue {queue_id}, which is not"
            ));
        };
        let distance = |from: u32, to: u32| (to + queue.entry_count - from) % queue.entry_count;
        let is_sound = head < queue.entry_count
            && head != queue.head
            && distance(queue.head, head) <= distance(queue.head, queue.tail);
        if is_sound {
            queue.head = head;
            return;
        }
        let queue = *queue;
        self.violation(format_args!(
            "rings {head} on completion queue {queue_id}: {queue:?}"
        ));
    }
}
