//! Errors of the CUDA device, with messages that say what to do next.

use akunu_plan::DeviceError;

use crate::NAME;

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CudaError {
    #[error("{library} was not found ({}); {advice}", looked.join(", "))]
    MissingLibrary {
        library: &'static str,
        /// The places that were searched, and each one's error.
        looked: Vec<String>,
        advice: &'static str,
    },
    #[error("{library} has no function {symbol}; {advice}")]
    MissingFunction { library: String, symbol: &'static str, advice: &'static str },
    #[error("there is no card {number}: the driver sees {cards}, which are counted from 0")]
    UnknownCard { number: u32, cards: u32 },
    #[error("card {card} has no access to the memory of card {peer}, which ranks of one model need")]
    NoPeerAccess { card: i32, peer: u32 },
    #[error("the driver sees no card; see what nvidia-smi says, or use --device cpu")]
    NoCard,
    #[error(
        "NVRTC {major}.{minor} knows no sm_{architecture}, which the card is; install a newer NVRTC (pip install nvidia-cuda-nvrtc)"
    )]
    Architecture { architecture: u32, major: i32, minor: i32 },
    /// A driver function failed.
    #[error("{call} gave {name} ({code}): {message}")]
    Call { call: &'static str, code: i32, name: String, message: String },
    #[error("{call} gave {code}: {message}")]
    Nvrtc { call: &'static str, code: i32, message: String },
    #[error("{call} gave CUBLAS_STATUS_{name} ({code}): {message}; AKUNU_CUDA=noblas does without cuBLASLt")]
    Blas { call: &'static str, code: i32, name: &'static str, message: &'static str },
    #[error(
        "cuBLASLt has no way to multiply {rows} rows of {inputs} with {outputs} outputs in f16; AKUNU_CUDA=noblas does without it"
    )]
    NoProduct { rows: u32, inputs: u32, outputs: u32 },
    #[error("compiling {function} ended without a result; please report this")]
    Compiler { function: String },
    #[error("{call} gave {code}: {message}; NCCL_DEBUG=WARN says more")]
    Nccl { call: &'static str, code: i32, message: &'static str },
    #[error("cannot start a thread for the card: {message}")]
    Thread { message: String },
    #[error("a thread that copies weights to the card has ended; please report this")]
    ReaderEnded,
    #[error("NVRTC does not compile {function} for {architecture}; please report this log\n{log}")]
    Compile { function: String, architecture: String, log: String },
}

/// The driver's error code for device memory that is exhausted.
pub(crate) const OUT_OF_MEMORY: i32 = 2;
/// Nothing is wrong.
pub(crate) const PEER_ACCESS_ALREADY_ENABLED: i32 = 704;
/// No card, or none that is visible to this process.
pub(crate) const NO_DEVICE: i32 = 100;

impl CudaError {
    /// CUDA is simply absent: there is no driver, or no card.
    pub fn is_absence(&self) -> bool {
        match self {
            CudaError::NoCard => true,
            CudaError::MissingLibrary { library, .. } => *library == crate::library::DRIVER,
            _ => false,
        }
    }

    pub(crate) fn is_out_of_memory(&self) -> bool {
        matches!(self, CudaError::Call { code: OUT_OF_MEMORY, .. })
    }

    /// The same error, with what was being done.
    pub(crate) fn during(self, what: &str) -> DeviceError {
        DeviceError::Failed { device: NAME, message: format!("{what}: {self}") }
    }
}

impl From<CudaError> for DeviceError {
    fn from(error: CudaError) -> DeviceError {
        DeviceError::Failed { device: NAME, message: error.to_string() }
    }
}

pub(crate) fn failed(message: impl Into<String>) -> DeviceError {
    DeviceError::Failed { device: NAME, message: message.into() }
}
