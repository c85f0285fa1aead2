//! Errors of the Metal device, with messages that say what to do next.

use akunu_plan::DeviceError;

use crate::chip::NAME;

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MetalError {
    #[error("the system has no Metal device; use --device cpu")]
    NoDevice,
    #[error("{name} is no GPU of Apple's own (M1, A14 or later); use --device cpu, or try AKUNU_METAL=any")]
    OldDevice { name: String },
    #[error("Metal gave no {what}: the system is short of memory or of GPU resources; close other programs")]
    Refused { what: &'static str },
    #[error(
        "a buffer of {bytes} bytes is longer than the {most} that {name} allows; try a smaller context (-c) or model"
    )]
    TooLong { name: String, bytes: u64, most: u64 },
    #[error(
        "Metal cannot use {bytes} bytes of a file where they are mapped; please report the file's kind and the Mac's"
    )]
    NotMapped { bytes: usize },
    #[error("Metal does not compile {function}; please report this log\n{log}")]
    Compile { function: String, log: String },
    #[error(
        "{function} wants groups of {wanted} threads, and on this GPU {most} have registers enough; please report this"
    )]
    Threads { function: String, wanted: u32, most: usize },
    #[error("a command buffer was encoded before another that was submitted: a bug, please report it")]
    Order,
    #[error(
        "the GPU is not done after {seconds} seconds and is not used any more: start again; AKUNU_METAL=checked names the command"
    )]
    Stuck { seconds: u64 },
    /// A command buffer did not complete.
    #[error("{}{}: {message}", failure.0, failure.1)]
    Commands { failure: (&'static str, &'static str), message: String },
}

/// The codes of `MTLCommandBufferError`, what they mean, and what to do.
const FAILURES: [(isize, &str, &str); 9] = [
    (1, "the GPU failed", "; AKUNU_METAL=checked names the command"),
    (2, "the system stopped the GPU, which took too long", "; try smaller chunks of the prompt (--chunk)"),
    (
        3,
        "a kernel touched memory that is not its own",
        "; AKUNU_METAL=checked names the command: please report it",
    ),
    (
        4,
        "the system took the GPU away from this process",
        "; it was too slow or failed too often: start again",
    ),
    (7, "this process may not use the GPU", "; apps in the background may not"),
    (8, "the GPU has no memory left for the pass", "; try a smaller context (-c), or close other programs"),
    (9, "a buffer is gone", "; please report this"),
    (11, "the GPU was removed", ""),
    (12, "a kernel's stack is full", "; please report this"),
];

impl MetalError {
    /// Metal is simply absent on this machine.
    pub fn is_absence(&self) -> bool {
        *self == MetalError::NoDevice
    }

    pub(crate) fn of_commands(code: isize, message: String) -> MetalError {
        let known = FAILURES.iter().find(|(number, ..)| *number == code);
        let failure = known.map_or((FAILURES[0].1, FAILURES[0].2), |(_, what, advice)| (*what, *advice));
        MetalError::Commands { failure, message }
    }
}

impl From<MetalError> for DeviceError {
    fn from(error: MetalError) -> DeviceError {
        DeviceError::Failed { device: NAME, message: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_say_what_they_mean_and_what_to_do() {
        let told = |code| DeviceError::from(MetalError::of_commands(code, "said".into())).to_string();
        assert_eq!(
            told(8),
            "metal: the GPU has no memory left for the pass; try a smaller context (-c), or close other programs: said"
        );
        assert!(told(2).contains("--chunk"));
        assert_eq!(told(99), "metal: the GPU failed; AKUNU_METAL=checked names the command: said");
        assert!(FAILURES.is_sorted_by_key(|(number, ..)| *number));
    }
}
