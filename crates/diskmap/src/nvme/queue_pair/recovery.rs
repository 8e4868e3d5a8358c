//! What a queue pair does when its controller is stopped, started, stuck or lost.

use clock::{Duration, Instant};

use super::{Link, Nvme, POLL_INTERVAL};
use crate::DiskError;
use crate::nvme::NvmeConfig;
use crate::nvme::access::{DmaMemory, DmaSlots, Registers};
use crate::nvme::canary::Fault;
use crate::nvme::commands::Progress;
use crate::nvme::controller::{Inner, PairState, Phase, Trouble};

/// Commands are looked through for late ones this often during one timeout.
const SCANS_PER_TIMEOUT: u32 = 8;

impl<R: Registers, D: DmaMemory, S: DmaSlots> Nvme<R, D, S> {
    /// Whether the controller still is what our queues were made on; if not, what follows.
    pub(super) fn follow(&mut self, now: Instant) {
        self.last_now = now;
        let snapshot = self.controller.snapshot();
        if self.link == Link::Live(snapshot.epoch) && snapshot.phase == Phase::Ready {
            if now >= self.next_scan {
                self.scan(now, snapshot.epoch);
            }
            return;
        }
        self.with_controller(|inner| inner.poll(now));
        let snapshot = self.controller.snapshot();
        if let Link::Live(epoch) | Link::Attaching(epoch) = self.link
            && (epoch != snapshot.epoch || snapshot.phase != Phase::Ready)
        {
            match snapshot.phase {
                Phase::Stopping if !self.canary.is(Fault::TakenBackEarly) => return,
                Phase::Runaway => self.link = Link::Runaway,
                _ => {
                    self.link = Link::Detached;
                    self.take_back();
                }
            }
        }
        match snapshot.phase {
            Phase::Ready => self.attach(snapshot.epoch),
            Phase::Dead | Phase::Runaway => {
                if !self.is_end_told {
                    self.is_end_told = true;
                    self.untold.get_or_insert(0);
                }
                self.fail_pending();
            }
            Phase::Stopping | Phase::Stopped => {}
        }
    }

    /// Does something with the controller, unless another worker does right now, and counts the resets that
    /// come of it.
    fn with_controller<T>(&mut self, act: impl FnOnce(&mut Inner<R, D>) -> T) -> Option<T> {
        let (value, before, after) = self.controller.with(|inner| {
            let before = inner.counters;
            let value = act(inner);
            (value, before, inner.counters)
        })?;
        let resets = after.reset_count - before.reset_count;
        self.nvme_counters.reset_count += resets;
        self.nvme_counters.function_reset_count +=
            after.function_reset_count - before.function_reset_count;
        if resets > 0 {
            self.untold.get_or_insert(0);
        }
        Some(value)
    }

    /// What is to be told of the controller, and how many commands were taken back from it since the last time;
    /// in another round if another worker uses it right now.
    pub(in crate::nvme) fn poll_trouble(&mut self) -> Option<(Trouble, u64)> {
        let commands = self.untold?;
        // It is told of once what it had is taken back, or turned out to be lost.
        let snapshot = self.controller.snapshot();
        let is_current = self.link == Link::Live(snapshot.epoch) && snapshot.phase == Phase::Ready;
        let is_lost = self.link == Link::Runaway;
        if !is_current && !is_lost && self.requests.commands.issued().next().is_some() {
            return None;
        }
        let trouble = self.controller.with(|inner| inner.trouble())?;
        self.untold = None;
        trouble.map(|trouble| (trouble, commands))
    }

    /// Has our queues made, step by step.
    fn attach(&mut self, epoch: u64) {
        if self.link == Link::Detached {
            self.submission.clear();
            self.completion.clear(&mut self.memory);
            self.memory.release();
            self.link = Link::Attaching(epoch);
        }
        let (queue_id, queues) = (self.queue_id, self.queues);
        let state = self.controller.with(|inner| inner.attach(queue_id, queues));
        match state {
            Some(PairState::Live) => {
                self.link = Link::Live(epoch);
                self.next_scan = self.last_now + self.scan_interval();
            }
            Some(PairState::Refused(_)) => self.fail_pending(),
            _ => {}
        }
    }

    fn scan_interval(&self) -> Duration {
        self.config.command_timeout / SCANS_PER_TIMEOUT
    }

    /// The controller was stopped: what it had is ours again.
    fn take_back(&mut self) {
        let issued: Vec<u16> = self
            .requests
            .commands
            .issued()
            .map(|(index, ..)| index)
            .collect();
        if !issued.is_empty() {
            *self.untold.get_or_insert(0) += issued.len() as u64;
        }
        for index in issued {
            self.nvme_counters.taken_back_commands += 1;
            let timeout = DiskError::Io(libc::ETIMEDOUT);
            if self.canary.is(Fault::NotReissued) || self.canary.is(Fault::TakenBackEarly) {
                self.requests.end(index, Err(timeout));
            } else {
                self.requests.reissue_or_end(index, timeout);
            }
        }
    }

    /// There is no controller to issue commands to.
    fn fail_pending(&mut self) {
        while let Some(index) = self.requests.pending.pop_front() {
            self.requests.end(index, Err(DiskError::Io(libc::ENODEV)));
        }
    }

    /// Looks for commands that take too long, and whether the controller is well.
    fn scan(&mut self, now: Instant, epoch: u64) {
        self.next_scan = now + self.scan_interval();
        // What has completed is not late, however long nobody has looked: the process may have been stopped.
        self.reap(usize::MAX);
        let mut issued = self.requests.commands.issued().peekable();
        if issued.peek().is_none() {
            return;
        }
        let queue_id = self.queue_id;
        let NvmeConfig {
            command_timeout,
            abort_grace,
            ..
        } = self.config;
        let mut late = Vec::new();
        let mut is_stuck = false;
        for (index, command_id, at, is_aborted) in issued {
            let age = now.since(at);
            is_stuck |= age >= command_timeout + abort_grace;
            if age >= command_timeout && !is_aborted {
                late.push((index, command_id));
            }
        }
        let aborted = self.with_controller(|inner| {
            // A fatal status shows here, and that somebody else reset it.
            inner.poll(now);
            if is_stuck {
                inner.report_stuck(now, epoch, queue_id);
                late.clear();
            }
            late.retain(|(_, command_id)| inner.abort(queue_id, *command_id));
            inner.poll(now);
            (late, inner.is_busy())
        });
        let Some((aborted, is_busy)) = aborted else {
            return;
        };
        if is_busy {
            // Aborts are sent one after the other, and each before the grace of its command ends.
            self.next_scan = now + POLL_INTERVAL;
        }
        for (index, _) in aborted {
            self.nvme_counters.aborted_commands += 1;
            if let Progress::Issued { is_aborted, .. } =
                &mut self.requests.commands.at(index).progress
            {
                *is_aborted = true;
            }
        }
    }
}
