//! Model files: GGUF and SafeTensors behind one [`WeightProvider`], the block layout of every dtype,
//! and the scalar (de)quantisation that the rest of the engine is tested against.

mod affine;
pub mod blocks;
mod config;
mod dtype;
mod error;
pub mod gguf;
mod hf;
mod map;
mod names;
mod open;
mod provider;
pub mod quantise;
mod region;

pub use affine::{Affine, ScaleType};
pub use config::{
    Activation, ModelConfig, Rope, RopeFactors, RopeScaling, Source, SuggestedSampling, Window, WindowPattern,
};
pub use dtype::DType;
pub use error::FormatError;
pub use gguf::{Array, Gguf, GgufModel, GgufWriter, Metadata, Strings, TensorSpec, Value};
pub use hf::SafeTensorsModel;
pub use open::open_model;
pub use provider::{Place, TensorInfo, WeightProvider};
pub use region::Region;
