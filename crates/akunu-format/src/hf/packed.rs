//! GPTQ and AWQ: `X.qweight` contains packed quants with the inputs in rows, `X.qzeros` and `X.scales` a zero point and
//! a scale for each group of inputs, and `X.g_idx`, in GPTQ only, the group of each input. A weight is
//! `scale · (quant − zero)`.
//!
//! Devices have weights with the outputs in rows, and scales and offsets as MLX has them (`scale · quant + offset`), so
//! each weight is transposed when it is first read, and its offset is `−zero · scale`. A scale of F16 or BF16 keeps its
//! type where that product is exact in it, as with the constant zero point of symmetric quantisation. Otherwise both
//! are F32, in which the product is exact. If groups are scattered over a row (`desc_act`), the inputs of each group are
//! brought together, and the tensor has the order.

use safetensors::tensor::Dtype;

use super::groups::{Grouping, Layout, Packing};
use super::json::Json;
use super::quantisation::{Files, plain, scale_type};
use super::tensors::Stored;
use crate::error::printable;
use crate::{Affine, DType, FormatError, Place, Region, ScaleType, TensorInfo};

/// The settings of all quantised modules; which ones are quantised follows from the tensors.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    awq: bool,
    bits: usize,
    /// `None`: one group for a whole row.
    group: Option<usize>,
    /// GPTQ's first version stores zero points minus one.
    minus_one: bool,
}

/// What follows the reason for which a folder cannot be read.
pub(super) const REMEDY: &str = "take the original, or a GGUF file";

impl Settings {
    pub(super) fn gptq(json: &Json<'_>) -> Result<Settings, FormatError> {
        let mut format = None;
        for key in ["checkpoint_format", "format"] {
            match json.str(key)? {
                None => {}
                Some(own @ ("gptq" | "gptq_v2")) if format.is_none_or(|other| other == own) => {
                    format = Some(own);
                }
                Some(own @ ("gptq" | "gptq_v2")) => {
                    let asks = format!(
                        "is {own}, and `checkpoint_format` is another one, so zero points may be stored in two ways \
                         (remove the wrong one of the two keys, {REMEDY})"
                    );
                    return Err(json.unsupported(key, asks));
                }
                Some(other) => {
                    let asks = format!("is {} (and not gptq or gptq_v2; {REMEDY})", printable(other));
                    return Err(json.unsupported(key, asks));
                }
            }
        }
        let minus_one = format != Some("gptq_v2");
        if json.bool("is_marlin_format")? == Some(true) {
            let asks = format!("asks for weights in the order of Marlin's kernels ({REMEDY})");
            return Err(json.unsupported("is_marlin_format", asks));
        }
        // Patterns that exclude modules say nothing that the tensors do not.
        if let Some(dynamic) = json.object("dynamic")?
            && let Some(own) = dynamic.keys().find(|pattern| !pattern.starts_with("-:"))
        {
            let asks = format!("asks for other settings of {} ({REMEDY})", printable(own));
            return Err(json.unsupported("dynamic", asks));
        }
        let bits = bits(json, &[2, 3, 4, 8])?;
        Ok(Settings { awq: false, bits, group: group(json)?, minus_one })
    }

    pub(super) fn awq(json: &Json<'_>) -> Result<Settings, FormatError> {
        for key in ["version", "format"] {
            if let Some(other) = json.str(key)?.filter(|version| !version.eq_ignore_ascii_case("gemm")) {
                let asks = format!("is {} (and not gemm; {REMEDY})", printable(other));
                return Err(json.unsupported(key, asks));
            }
        }
        let bits = bits(json, &[4])?;
        Ok(Settings { awq: true, bits, group: group(json)?, minus_one: false })
    }

    pub(super) fn name(self) -> &'static str {
        if self.awq { "AWQ" } else { "GPTQ" }
    }
}

fn bits(json: &Json<'_>, supported: &[usize]) -> Result<usize, FormatError> {
    let bits = json.usize("bits")?.ok_or_else(|| missing(json, "bits"))?;
    if supported.contains(&bits) {
        return Ok(bits);
    }
    let list: Vec<String> = supported.iter().map(usize::to_string).collect();
    Err(json.unsupported("bits", format!("is {bits} (and not {}; {REMEDY})", list.join(", "))))
}

/// −1 means one group for each row.
fn group(json: &Json<'_>) -> Result<Option<usize>, FormatError> {
    const KEY: &str = "group_size";
    if json.f64(KEY).is_ok_and(|size| size == Some(-1.0)) {
        return Ok(None);
    }
    match json.usize(KEY)?.ok_or_else(|| missing(json, KEY))? {
        0 => Err(super::json::wrong(&json.full(KEY), "a group has no weights".to_string())),
        size => Ok(Some(size)),
    }
}

fn missing(json: &Json<'_>, key: &str) -> FormatError {
    FormatError::MissingKey { key: json.full(key), place: super::CONFIG }
}

/// The tensors of a module beside its `qweight`.
const PARTS: [&str; 3] = ["qzeros", "scales", "g_idx"];

/// Combines the parts of each weight. Transposed weights, and their planes, are added to `derived`.
pub(super) fn join(
    files: &Files,
    settings: &Settings,
    derived: &mut Vec<Region>,
) -> Result<Vec<TensorInfo>, FormatError> {
    let mut tensors = Vec::with_capacity(files.stored.len());
    for tensor in &files.stored {
        let Some((path, part)) = tensor.name.rsplit_once('.') else {
            tensors.push(plain(tensor)?);
            continue;
        };
        if PARTS.contains(&part) {
            files.required(path, "qweight")?;
        } else if part == "qweight" {
            if files.find(path, "weight").is_some() {
                let problem = "it is stored twice, quantised and as `weight`: download the folder again";
                return Err(FormatError::tensor(&tensor.name, problem));
            }
            let weight = weight(files, path, tensor, settings, derived);
            tensors.push(weight.map_err(|problem| FormatError::tensor(&tensor.name, problem))?);
        } else {
            tensors.push(plain(tensor)?);
        }
    }
    Ok(tensors)
}

/// The shapes of a weight's parts, checked against each other.
struct Shapes {
    inputs: usize,
    outputs: usize,
    /// Groups of inputs, as many as there are scales for an output.
    groups: usize,
    /// The largest number of inputs of a group.
    group: usize,
}

fn shapes(qweight: &Stored, qzeros: &Stored, scales: &Stored, settings: &Settings) -> Result<Shapes, String> {
    let Settings { awq, bits, .. } = *settings;
    for (name, part) in [("it", qweight), ("its qzeros", qzeros)] {
        if part.dtype != Dtype::I32 {
            return Err(format!("{name} should be packed in I32, and is {:?}: {REMEDY}", part.dtype));
        }
    }
    let [rows, cols] = qweight.shape[..] else {
        return Err(format!("it should be a matrix, and its shape is {:?}", qweight.shape));
    };
    let count = |words: usize| Some(words.checked_mul(32)? / bits);
    let (inputs, outputs) = match awq {
        true => (Some(rows), count(cols)),
        false => (count(rows), Some(cols)),
    };
    let (inputs, outputs) = inputs.zip(outputs).ok_or("it is too large")?;
    if !inputs.is_multiple_of(32) || !(outputs * bits).is_multiple_of(32) || inputs == 0 {
        return Err(format!(
            "its shape is {:?}, for {outputs} outputs of {inputs} inputs: only multiples of 32 inputs, and outputs \
             that fill words, are supported ({REMEDY})",
            qweight.shape
        ));
    }
    let group = settings.group.unwrap_or(inputs);
    let groups = inputs.div_ceil(group);
    for (name, part, expected) in
        [("qzeros", qzeros, [groups, outputs * bits / 32]), ("scales", scales, [groups, outputs])]
    {
        if part.shape != expected {
            return Err(format!(
                "the shape of its {name} is {:?}, but should be {expected:?} for {outputs} outputs of {inputs} inputs \
                 at {bits} bits in groups of {group}: take the config.json that was published with the weights",
                part.shape
            ));
        }
    }
    Ok(Shapes { inputs, outputs, groups, group })
}

fn weight(
    files: &Files,
    path: &str,
    qweight: &Stored,
    settings: &Settings,
    derived: &mut Vec<Region>,
) -> Result<TensorInfo, String> {
    let part = |name: &str| {
        let missing = || format!("its {name} are missing: download the folder again");
        files.find(path, name).ok_or_else(missing)
    };
    let (qzeros, scales) = (part("qzeros")?, part("scales")?);
    let shapes = shapes(qweight, qzeros, scales, settings)?;
    let stored_scales = scale_type(scales)?;
    let grouping = match files.find(path, "g_idx") {
        Some(index) => grouping(files, index, &shapes)?,
        None => Grouping::consecutive(shapes.inputs, shapes.group),
    };
    let grouping = grouping.ok_or_else(|| {
        format!(
            "its groups of {} inputs are not whole blocks of 32, which is not supported: {REMEDY}",
            shapes.group
        )
    })?;
    let layout = if settings.awq { Layout::Awq } else { Layout::Gptq { bits: settings.bits } };
    let packing = Packing {
        layout,
        inputs: shapes.inputs,
        outputs: shapes.outputs,
        minus_one: settings.minus_one,
        scale_type: stored_scales,
        groups: shapes.groups,
        quants: files.part(qweight),
        zeros: Some(files.part(qzeros)),
        scales: files.part(scales),
        grouping,
    };
    affine(format!("{path}.weight"), packing, qweight.place, files.regions.len(), derived)
}

/// The weight that devices see. `stored`: where its quants are, if they are in rows already; `files`: the number of
/// regions before those that are derived.
pub(super) fn affine(
    name: String,
    packing: Packing,
    stored: Place,
    files: usize,
    derived: &mut Vec<Region>,
) -> Result<TensorInfo, String> {
    let (outputs, inputs, bits) = (packing.outputs, packing.inputs, packing.layout.bits());
    let kept = if packing.check()? { packing.scale_type } else { ScaleType::F32 };
    let affine = Affine::new(bits, packing.grouping.size(), kept)
        .ok_or_else(|| format!("{bits} bits are not supported: {REMEDY}"))?;
    let (dtype, order) = (DType::Affine(affine), packing.grouping.order());
    let sizes = dtype.plane_bytes(inputs).ok_or("its rows are not whole groups")?;
    let mut add = |region: Region, plane: usize| {
        derived.push(region);
        Place { region: files + derived.len() - 1, offset: 0, bytes: sizes[plane] * outputs }
    };
    let (quants, [scales, offsets]) = packing.regions(affine);
    let Place { region, offset, bytes } = quants.map_or(stored, |region| add(region, 0));
    let scales_offsets = [Some(add(scales, 1)), Some(add(offsets, 2))];
    Ok(TensorInfo { name, dtype, shape: vec![outputs, inputs], region, offset, bytes, scales_offsets, order })
}

/// The groups that `g_idx` gives the inputs; `None` if they are not whole blocks.
fn grouping(files: &Files, index: &Stored, shapes: &Shapes) -> Result<Option<Grouping>, String> {
    if index.dtype != Dtype::I32 || index.shape != [shapes.inputs] {
        return Err(format!(
            "its g_idx is {:?} of the shape {:?}, but should be I32 of the shape {:?}",
            index.dtype,
            index.shape,
            [shapes.inputs]
        ));
    }
    let mut group_of = Vec::with_capacity(shapes.inputs);
    for (input, bytes) in files.bytes(index.place).as_chunks::<4>().0.iter().enumerate() {
        let group = i32::from_le_bytes(*bytes);
        match u32::try_from(group).ok().filter(|&group| (group as usize) < shapes.groups) {
            Some(group) => group_of.push(group),
            None => {
                return Err(format!(
                    "its g_idx puts input {input} into group {group} of {}: the file is damaged, download it again",
                    shapes.groups
                ));
            }
        }
    }
    Ok(Grouping::of(&group_of))
}
