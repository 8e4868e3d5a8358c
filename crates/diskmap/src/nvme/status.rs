//! The status of a completed command: its name, and whether the command is worth another attempt
//! (NVM Express Base Specification 2.0, Status Field Definition; NVM Command Set Specification 1.0, status values).

use core::fmt;

/// Status Field of a completion queue entry, without its phase tag: bits 7:0 are the Status Code (SC),
/// 10:8 the Status Code Type (SCT), 12:11 the Command Retry Delay, 13 More, 14 Do Not Retry (DNR).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status(u16);

/// SCT of statuses that all commands share.
const GENERIC: u16 = 0;
/// SCT of statuses of one command.
const COMMAND_SPECIFIC: u16 = 1;
/// SCT of errors of media and data.
const MEDIA: u16 = 2;
/// SCT of errors on the way to the media.
const PATH: u16 = 3;
/// Do Not Retry.
const DO_NOT_RETRY: u16 = 1 << 14;

/// Attempts after the first of a command that failed and may succeed, or that a reset took back.
pub const REISSUES_MAX: u8 = 4;
/// The same after an error of the media: the controller has tried for long already.
const MEDIA_REISSUES_MAX: u8 = 1;

impl Status {
    /// Success.
    pub const SUCCESS: Self = Self(0);

    /// From the last two bytes of a completion queue entry, whose lowest bit is the phase tag.
    #[must_use]
    pub const fn from_entry(field: u16) -> Self {
        Self(field >> 1)
    }

    /// Of a type and a code.
    pub(super) const fn new(code_type: u8, code: u8, do_not_retry: bool) -> Self {
        let retry = if do_not_retry { DO_NOT_RETRY } else { 0 };
        Self((code_type as u16 & 7) << 8 | code as u16 | retry)
    }

    /// The last two bytes of a completion queue entry with this status and phase tag.
    pub(super) const fn to_entry(self, phase: bool) -> u16 {
        self.0 << 1 | phase as u16
    }

    /// Status Code Type, 0..=7.
    #[must_use]
    pub const fn code_type(self) -> u16 {
        self.0 >> 8 & 7
    }

    /// Status Code.
    #[must_use]
    pub const fn code(self) -> u16 {
        self.0 & 0xff
    }

    /// The controller says that the same command would fail again.
    #[must_use]
    pub const fn is_do_not_retry(self) -> bool {
        self.0 & DO_NOT_RETRY != 0
    }

    /// Whether the command succeeded.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.code_type() == GENERIC && self.code() == 0
    }

    /// How often a command with this status may be issued again.
    pub(super) const fn reissues_max(self) -> u8 {
        if self.is_do_not_retry() {
            0
        } else if self.code_type() == MEDIA {
            MEDIA_REISSUES_MAX
        } else {
            REISSUES_MAX
        }
    }

    /// Its name in the specifications; `None` if it is reserved there, or the vendor's.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        match self.code_type() {
            GENERIC => generic_name(self.code()),
            COMMAND_SPECIFIC => command_name(self.code()),
            MEDIA => media_name(self.code()),
            PATH => path_name(self.code()),
            _ => None,
        }
    }
}

/// Generic Command Status Values.
const fn generic_name(code: u16) -> Option<&'static str> {
    Some(match code {
        0x00 => "Successful Completion",
        0x01 => "Invalid Command Opcode",
        0x02 => "Invalid Field in Command",
        0x03 => "Command ID Conflict",
        0x04 => "Data Transfer Error",
        0x05 => "Commands Aborted due to Power Loss Notification",
        0x06 => "Internal Error",
        0x07 => "Command Abort Requested",
        0x08 => "Command Aborted due to SQ Deletion",
        0x0b => "Invalid Namespace or Format",
        0x0c => "Command Sequence Error",
        0x13 => "PRP Offset Invalid",
        0x15 => "Operation Denied",
        0x1c => "Sanitize Failed",
        0x1d => "Sanitize In Progress",
        0x20 => "Namespace is Write Protected",
        0x21 => "Command Interrupted",
        0x22 => "Transient Transport Error",
        0x24 => "Admin Command Media Not Ready",
        0x80 => "LBA Out of Range",
        0x81 => "Capacity Exceeded",
        0x82 => "Namespace Not Ready",
        0x83 => "Reservation Conflict",
        0x84 => "Format In Progress",
        _ => return None,
    })
}

/// Command Specific Status Values, those of commands that this driver sends.
const fn command_name(code: u16) -> Option<&'static str> {
    Some(match code {
        0x00 => "Completion Queue Invalid",
        0x01 => "Invalid Queue Identifier",
        0x02 => "Invalid Queue Size",
        0x03 => "Abort Command Limit Exceeded",
        0x08 => "Invalid Interrupt Vector",
        0x0c => "Invalid Queue Deletion",
        0x80 => "Conflicting Attributes",
        0x81 => "Invalid Protection Information",
        0x82 => "Attempted Write to Read Only Range",
        _ => return None,
    })
}

/// Media and Data Integrity Error Values.
const fn media_name(code: u16) -> Option<&'static str> {
    Some(match code {
        0x80 => "Write Fault",
        0x81 => "Unrecovered Read Error",
        0x82 => "End-to-end Guard Check Error",
        0x83 => "End-to-end Application Tag Check Error",
        0x84 => "End-to-end Reference Tag Check Error",
        0x85 => "Compare Failure",
        0x86 => "Access Denied",
        0x87 => "Deallocated or Unwritten Logical Block",
        _ => return None,
    })
}

/// Path Related Status Values.
const fn path_name(code: u16) -> Option<&'static str> {
    Some(match code {
        0x00 => "Internal Path Error",
        0x01 => "Asymmetric Access Persistent Loss",
        0x02 => "Asymmetric Access Inaccessible",
        0x03 => "Asymmetric Access Transition",
        0x60 => "Controller Pathing Error",
        0x70 => "Host Pathing Error",
        0x71 => "Command Aborted By Host",
        _ => return None,
    })
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name().unwrap_or("unknown status");
        let (code_type, code) = (self.code_type(), self.code());
        write!(f, "{name} (SCT {code_type:X}h, SC {code:02X}h)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_names_and_numbers() {
        let status = Status::from_entry(0x0281 << 1 | 1);
        assert_eq!(
            status.to_string(),
            "Unrecovered Read Error (SCT 2h, SC 81h)"
        );
        let vendor = Status::new(7, 0x12, false);
        assert_eq!(vendor.to_string(), "unknown status (SCT 7h, SC 12h)");
        assert_eq!(Status::SUCCESS.name(), Some("Successful Completion"));
    }

    #[test]
    fn a_status_survives_its_entry_and_the_phase_tag_is_not_part_of_it() {
        for raw in [0, 0x81, 0x0281, 0x4002, 0x7fff] {
            for phase in [false, true] {
                let status = Status(raw);
                assert_eq!(Status::from_entry(status.to_entry(phase)), status);
            }
        }
        assert!(Status::from_entry(1).is_success());
        assert!(!Status::from_entry(2).is_success());
    }

    #[test]
    fn do_not_retry_is_obeyed_and_media_errors_are_tried_once_more() {
        assert_eq!(Status::new(0, 6, false).reissues_max(), REISSUES_MAX);
        assert_eq!(Status::new(0, 6, true).reissues_max(), 0);
        assert_eq!(Status::new(2, 0x81, false).reissues_max(), 1);
        assert_eq!(Status::new(2, 0x81, true).reissues_max(), 0);
    }
}
