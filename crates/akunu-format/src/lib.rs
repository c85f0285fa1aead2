//! Model files: the GGUF and SafeTensors containers, whisper.cpp's GGML container, MLX's quantised matrices and those of GPTQ, AWQ and FP8, the block layout of every dtype, and the
//! scalar quantisation and dequantisation that the kernels are tested against. `akunu-arch` interprets a file as a
//! model: this crate does not know any architecture.

mod affine;
pub mod blocks;
mod container;
mod cursor;
mod dtype;
mod error;
mod fp8;
mod ggml;
pub mod gguf;
pub mod hf;
mod imatrix;
mod map;
pub mod quantise;
mod region;
mod tensor;

pub use affine::{Affine, ScaleType};
pub use container::Container;
pub use dtype::DType;
pub use error::{FormatError, escaped, printable};
pub use fp8::{Fp8, e4m3_to_f32, f32_to_e4m3};
pub use ggml::{Ggml, GgmlShape, GgmlTower};
pub use gguf::{Array, Gguf, GgufWriter, Metadata, Strings, TensorSpec, Value};
pub use imatrix::{Imatrix, ImatrixEntry};
pub use map::Loading;
pub use region::{Region, SourceFile};
pub use tensor::{Place, TensorInfo, index_names, refuse_misaligned};
