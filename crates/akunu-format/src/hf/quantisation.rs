//! How the weights of a checkpoint are quantised: `quantization` or `quantization_config` in `config.json` names the
//! tool, and each tool stores the parts of a weight under names of its own.

use std::collections::HashMap;

use safetensors::tensor::Dtype;

use super::compressed::Compressed;
use super::groups::Part;
use super::json::Json;
use super::tensors::{Stored, float_dtype, unsupported_type};
use super::{fp8, integers, mlx, mxfp4, packed};
use crate::error::printable;
use crate::{DType, FormatError, Place, Region, ScaleType, TensorInfo};

/// Where Hugging Face has the settings, and where MLX has them.
pub(super) const QUANTIZATION_CONFIG: &str = "quantization_config";
pub(super) const QUANTIZATION: &str = "quantization";

/// The quantisation settings in `config.json`.
#[derive(Debug)]
pub enum Quantisation<'a> {
    Mlx(mlx::Settings<'a>),
    /// GPTQ and AWQ.
    Packed(packed::Settings),
    Fp8(fp8::Settings),
    /// Of compressed-tensors.
    Integers(integers::Settings),
    /// Of the experts of gpt-oss.
    Mxfp4,
}

impl<'a> Quantisation<'a> {
    /// `None` if the configuration has no such settings. Methods that are not supported are rejected by name.
    pub fn of(root: &Json<'a>) -> Result<Option<Quantisation<'a>>, FormatError> {
        if let Some(json) = root.object(QUANTIZATION)? {
            return mlx::Settings::of(json).map(Quantisation::Mlx).map(Some);
        }
        let Some(json) = root.object(QUANTIZATION_CONFIG)? else { return Ok(None) };
        let settings = match json.str("quant_method")? {
            // MLX writes its settings under Hugging Face's name too.
            None => Quantisation::Mlx(mlx::Settings::of(json)?),
            Some("gptq") => Quantisation::Packed(packed::Settings::gptq(&json)?),
            Some("awq") => Quantisation::Packed(packed::Settings::awq(&json)?),
            Some("mxfp4") => Quantisation::Mxfp4,
            Some("fp8") => Quantisation::Fp8(fp8::Settings::plain(&json)?),
            Some("compressed-tensors") => {
                let settings = Compressed::of(&json)?;
                match settings.packed {
                    true => {
                        Quantisation::Integers(integers::Settings::of(&settings.weights, settings.cache)?)
                    }
                    false => Quantisation::Fp8(fp8::Settings::compressed(&settings)?),
                }
            }
            Some(other) => {
                let asks = format!("is {} (take the original, or a GGUF file)", printable(other));
                return Err(json.unsupported("quant_method", asks));
            }
        };
        Ok(Some(settings))
    }

    /// What such folders are called.
    pub fn name(&self) -> &'static str {
        match self {
            Quantisation::Mlx(_) => "MLX",
            Quantisation::Packed(settings) => settings.name(),
            Quantisation::Fp8(_) => "FP8",
            Quantisation::Integers(_) => "compressed-tensors",
            Quantisation::Mxfp4 => "MXFP4",
        }
    }

    /// Whether the file asks for FP8 rows where weights are FP8.
    pub fn has_fp8_activations(&self) -> bool {
        matches!(self, Quantisation::Fp8(settings) if settings.activations)
    }

    /// Whether the file asks for quantised keys and values, with scales of its own.
    pub fn has_cache_scheme(&self) -> bool {
        match self {
            Quantisation::Fp8(settings) => settings.cache,
            Quantisation::Integers(settings) => settings.cache,
            Quantisation::Mlx(_) | Quantisation::Packed(_) | Quantisation::Mxfp4 => false,
        }
    }
}

/// The tensors of all files as they are stored, and the files.
pub(super) struct Files {
    pub(super) stored: Vec<Stored>,
    pub(super) regions: Vec<Region>,
    by_name: HashMap<String, usize>,
}

impl Files {
    fn new(stored: Vec<Stored>, regions: Vec<Region>) -> Result<Files, FormatError> {
        let mut by_name = HashMap::with_capacity(stored.len());
        for (i, tensor) in stored.iter().enumerate() {
            if by_name.insert(tensor.name.clone(), i).is_some() {
                return Err(FormatError::tensor(&tensor.name, "it occurs twice"));
            }
        }
        Ok(Files { stored, regions, by_name })
    }

    /// The tensor `PATH.PART`.
    pub(super) fn find(&self, path: &str, part: &str) -> Option<&Stored> {
        self.by_name.get(&format!("{path}.{part}")).map(|&i| &self.stored[i])
    }

    pub(super) fn required(&self, path: &str, part: &str) -> Result<&Stored, FormatError> {
        self.find(path, part)
            .ok_or_else(|| FormatError::MissingTensor { name: format!("{}.{part}", printable(path)) })
    }

    pub(super) fn named(&self, name: &str) -> Result<&Stored, FormatError> {
        let index = self.by_name.get(name);
        index.map(|&i| &self.stored[i]).ok_or_else(|| FormatError::MissingTensor { name: printable(name) })
    }

    /// A tensor's bytes, with a handle to their file.
    pub(super) fn part(&self, tensor: &Stored) -> Part {
        let Place { region, offset, bytes } = tensor.place;
        Part { region: self.regions[region].clone(), offset, len: bytes }
    }

    pub(super) fn bytes(&self, place: Place) -> &[u8] {
        &self.regions[place.region].bytes()[place.offset..place.offset + place.bytes]
    }
}

/// Combines the parts of quantised weights. Names are still those of the file, with `.weight` for each weight.
pub(super) fn join(
    stored: Vec<Stored>,
    regions: Vec<Region>,
    quantisation: Option<&Quantisation<'_>>,
) -> Result<(Vec<TensorInfo>, Vec<Region>), FormatError> {
    let files = Files::new(stored, regions)?;
    let mut derived = Vec::new();
    let tensors = match quantisation {
        None => files.stored.iter().map(unquantised).collect::<Result<_, _>>()?,
        Some(Quantisation::Mlx(settings)) => mlx::join(&files, settings)?,
        Some(Quantisation::Packed(settings)) => packed::join(&files, settings, &mut derived)?,
        Some(Quantisation::Fp8(_)) => fp8::join(&files, &mut derived)?,
        Some(Quantisation::Integers(settings)) => integers::join(&files, settings, &mut derived)?,
        Some(Quantisation::Mxfp4) => mxfp4::join(&files)?,
    };
    let mut regions = files.regions;
    regions.extend(derived);
    Ok((tensors, regions))
}

fn unquantised(tensor: &Stored) -> Result<TensorInfo, FormatError> {
    if matches!(tensor.dtype, Dtype::U32 | Dtype::I32 | Dtype::F8_E4M3) {
        let problem = format!(
            "it is packed ({:?}), but config.json has no `quantization` or `quantization_config`",
            tensor.dtype
        );
        return Err(FormatError::tensor(&tensor.name, problem));
    }
    plain(tensor)
}

pub(super) fn plain(stored: &Stored) -> Result<TensorInfo, FormatError> {
    let dtype = float_dtype(stored.dtype).ok_or_else(|| unsupported_type(stored))?;
    Ok(info(stored, dtype, stored.shape.clone(), [None; 2]))
}

pub(super) fn info(
    stored: &Stored,
    dtype: DType,
    shape: Vec<usize>,
    scales_offsets: [Option<Place>; 2],
) -> TensorInfo {
    let Place { region, offset, bytes } = stored.place;
    TensorInfo { name: stored.name.clone(), dtype, shape, region, offset, bytes, scales_offsets, order: None }
}

/// The type of a plane of scales.
pub(super) fn scale_type(scales: &Stored) -> Result<ScaleType, String> {
    match scales.dtype {
        Dtype::F16 => Ok(ScaleType::F16),
        Dtype::BF16 => Ok(ScaleType::BF16),
        Dtype::F32 => Ok(ScaleType::F32),
        other => Err(format!("its scales are {other:?}: only F16, BF16 and F32 are supported")),
    }
}
