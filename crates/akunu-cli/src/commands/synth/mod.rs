//! `akunu synth`: a model file with random weights and the shape of a published model.

mod folder;
mod presets;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use akunu_arch::tensors::Kind;
use akunu_arch::{EncoderShape, Shape};
use akunu_file::NewFile;
use akunu_format::blocks::{Rng, random_row};
use akunu_format::quantise::Mix;
use akunu_format::{DType, FormatError, GgufWriter, TensorSpec};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::quantize::mix;
use crate::args;
use crate::failure::Failure;
use crate::grid::grouped;
use crate::interrupt;
use crate::output::{self, Output};
use crate::progress::Progress;
use crate::sources;
use folder::Form;
use presets::{Preset, Tensor, presets};

/// Approximate number of bytes that a thread generates at a time.
const PART: usize = 4 << 20;

/// Writes a GGUF with random weights in the shape of a published model, for speed measurements
///
/// Types are mixed as in llama-quantize: Q6_K for the output or tied embedding, more bits for some tensors in the _S,
/// _M and _L mixes, and a type with blocks of 32 for rows that are not a multiple of 256. The file has no vocabulary:
/// use it with bench, logits and run --prompt-ids. The same seed gives the same file.
#[derive(Debug, Args)]
pub struct SynthArgs {
    /// Model whose shape is used
    #[arg(value_parser = preset())]
    preset: Preset,
    /// Output file, or folder for --mlx and --fp8
    out: PathBuf,
    /// Type of the weights
    #[arg(short, long, value_name = "TYPE", default_value = "Q4_0", value_parser = mix(), ignore_case = true)]
    quant: Mix,
    /// Use this type for every matrix, including output and embedding
    #[arg(long)]
    pure: bool,
    /// Writes an MLX folder instead of a GGUF: weights of this many bits in groups of 64
    #[arg(long, value_name = "BITS", conflicts_with_all = ["quant", "pure"], value_parser = folder::bits())]
    mlx: Option<usize>,
    /// Writes a Hugging Face folder instead of a GGUF: weights in FP8 with a scale for each row, and activations in FP8
    #[arg(long, conflicts_with_all = ["quant", "pure", "mlx"])]
    fp8: bool,
    /// Number of layers, of each tower [default: all]
    #[arg(long, value_name = "N", value_parser = args::count)]
    layers: Option<usize>,
    /// Random seed
    #[arg(long, default_value = "0")]
    seed: u64,
    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
}

fn preset() -> impl TypedValueParser<Value = Preset> {
    PossibleValuesParser::new(presets().into_iter().map(|preset| preset.shape.name))
        .try_map(|name| Preset::find(&name).ok_or("unknown preset"))
}

pub fn run(args: &SynthArgs, _out: &mut Output) -> Result<(), Failure> {
    sources::refuse_existing(&args.out, args.force)?;
    let mut preset = args.preset;
    if let Some(layers) = args.layers {
        preset.shape.layers = layers;
        preset.shape.encoder = preset.shape.encoder.map(|encoder| EncoderShape { layers, ..encoder });
    }
    let tensors = preset.tensors();
    let folder = if args.fp8 { Some(Form::Fp8) } else { args.mlx.map(Form::Mlx) };
    let dtypes = match folder {
        Some(form) => folder::dtypes(&tensors, &preset, form)?,
        None => dtypes(&tensors, &preset, args.quant, args.pure),
    };
    let bytes = |(t, dtype): (&Tensor, &DType)| t.spec(*dtype).bytes().unwrap_or(0) as u64;
    let total: u64 = tensors.iter().zip(&dtypes).map(bytes).sum();

    let cancel = interrupt::flag();
    let mut progress = Progress::bytes("writing", total);
    let mut maker =
        Maker { preset: &preset, seed: args.seed, cancel: &cancel, progress: &mut progress, done: 0 };
    let written = match folder {
        Some(form) => folder::write(&args.out, &tensors, &dtypes, form, &mut maker),
        None => write_gguf(args, &tensors, &dtypes, &mut maker),
    };
    drop(progress);
    if let Err(failure) = written {
        return Err(if cancel.load(Ordering::Relaxed) { Failure::Interrupted } else { failure });
    }
    let parameters: u64 = tensors.iter().filter(|t| t.kind != Kind::RopeFactors).map(Tensor::elements).sum();
    output::note(&format!(
        "{}: {} with random weights in {}, {} parameters, {}",
        args.out.display(),
        preset.shape.title,
        folder.map_or(args.quant.name.to_string(), |form| form.to_string()),
        grouped(parameters),
        akunu::human(total)
    ));
    Ok(())
}

/// Bytes of the weights of a preset's model, and of its f16 KV cache.
pub(super) fn bytes(preset: &str, mix: &str, context: usize) -> Option<u64> {
    let (preset, mix) = (Preset::find(preset)?, Mix::find(mix)?);
    let tensors = preset.tensors();
    let dtypes = dtypes(&tensors, &preset, mix, false);
    let weights: Option<usize> =
        tensors.iter().zip(dtypes).map(|(tensor, dtype)| tensor.spec(dtype).bytes().ok()).sum();
    let Shape { layers, kv_heads, head_dim, latent, .. } = preset.shape;
    let parts = if latent.is_some() { 1 } else { 2 };
    Some((weights? + 2 * parts * layers * kv_heads * head_dim * context) as u64)
}

fn dtypes(tensors: &[Tensor], preset: &Preset, mix: Mix, pure: bool) -> Vec<DType> {
    let model = preset.proportions();
    tensors.iter().map(|tensor| mix.dtype(&tensor.name, &tensor.shape, &model, pure)).collect()
}

fn write_gguf(
    args: &SynthArgs,
    tensors: &[Tensor],
    dtypes: &[DType],
    maker: &mut Maker<'_>,
) -> Result<(), Failure> {
    let path = &args.out;
    let failed = |error: FormatError| match error {
        FormatError::Io { error, .. } => Failure::io("write", path, &error),
        other => Failure::new(format!("cannot write {}: {other}", path.display())),
    };
    let specs: Vec<TensorSpec> = tensors.iter().zip(dtypes).map(|(t, &dtype)| t.spec(dtype)).collect();
    let file = NewFile::create(path).map_err(|error| Failure::io("write", path, &error))?;
    let metadata = maker.preset.metadata(args.quant.file_type);
    let mut writer = GgufWriter::new(file, &metadata, specs.clone()).map_err(failed)?;
    for (index, (tensor, spec)) in tensors.iter().zip(&specs).enumerate() {
        writer.tensor(|out| maker.tensor(index, tensor, spec.dtype, out)).map_err(failed)?;
    }
    sources::commit(writer.finish().map_err(failed)?, path, args.force)
}

/// Generates tensor data in parts, shared by threads. The bytes of a part depend only on the seed and its position.
struct Maker<'a> {
    preset: &'a Preset,
    seed: u64,
    cancel: &'a AtomicBool,
    progress: &'a mut Progress,
    done: u64,
}

impl Maker<'_> {
    fn tensor(&mut self, index: usize, tensor: &Tensor, dtype: DType, out: &mut dyn Write) -> io::Result<()> {
        if tensor.kind == Kind::RopeFactors {
            return floats(&self.preset.rope_factors(), out);
        }
        let cols = tensor.cols();
        let rows = tensor.elements() as usize / cols;
        if tensor.kind == Kind::Norm {
            let mut rng = self.rng(index, 0);
            let values: Vec<f32> = (0..rows * cols).map(|_| 0.9 + 0.2 * rng.uniform()).collect();
            return floats(&values, out);
        }
        if tensor.name.ends_with(".ssm_a.weight") {
            // States decay.
            let mut rng = self.rng(index, 0);
            let rates: Vec<f32> = (0..rows * cols).map(|_| -0.05 - rng.uniform()).collect();
            return floats(&rates, out);
        }
        let row_bytes = dtype.row_bytes(cols).ok_or_else(|| io::Error::other("rows are not whole blocks"))?;
        let std = self.spread(tensor);
        let part_rows = (PART / row_bytes).max(1);
        let parts = rows.div_ceil(part_rows);
        let threads = super::threads(None);
        let mut buffers = vec![Vec::new(); threads];
        for first in (0..parts).step_by(threads) {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(io::Error::other("interrupted"));
            }
            let batch = &mut buffers[..threads.min(parts - first)];
            let made: Vec<Result<(), String>> = std::thread::scope(|scope| {
                let jobs: Vec<_> = batch
                    .iter_mut()
                    .zip(first..)
                    .map(|(buffer, part)| {
                        let rng = self.rng(index, part);
                        let live = part_rows.min(rows - part * part_rows);
                        scope.spawn(move || fill(buffer, live * row_bytes, row_bytes, dtype, rng, std))
                    })
                    .collect();
                jobs.into_iter()
                    .map(|job| job.join().unwrap_or_else(|_| Err("a thread ended early".into())))
                    .collect()
            });
            made.into_iter().collect::<Result<(), String>>().map_err(io::Error::other)?;
            for buffer in batch {
                out.write_all(buffer)?;
                self.done += buffer.len() as u64;
            }
            self.progress.set(self.done);
        }
        Ok(())
    }

    fn rng(&self, tensor: usize, part: usize) -> Rng {
        let mut rng = Rng::new(self.seed);
        let place = (tensor as u64) << 32 | part as u64;
        Rng::new(rng.next_u64() ^ place.wrapping_mul(0xd134_2543_de82_ef95))
    }

    /// Chosen to keep activations near 1 in all layers, for any width and depth.
    fn spread(&self, tensor: &Tensor) -> f32 {
        let std = 1.0 / (tensor.cols() as f32).sqrt();
        match tensor.kind {
            Kind::Residual => std / (2.0 * self.preset.shape.layers as f32).sqrt(),
            _ => std,
        }
    }
}

fn fill(
    buffer: &mut Vec<u8>,
    bytes: usize,
    row_bytes: usize,
    dtype: DType,
    mut rng: Rng,
    std: f32,
) -> Result<(), String> {
    buffer.resize(bytes, 0);
    for row in buffer.chunks_exact_mut(row_bytes) {
        random_row(dtype, &mut rng, std, row).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn floats(values: &[f32], out: &mut dyn Write) -> io::Result<()> {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    out.write_all(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(preset: &str, mix: &str, pure: bool, dtype: DType) -> usize {
        let (preset, mix) = (Preset::find(preset).unwrap(), Mix::find(mix).unwrap());
        dtypes(&preset.tensors(), &preset, mix, pure).iter().filter(|&&found| found == dtype).count()
    }

    #[test]
    fn a_llama_8b_in_q4_k_m_has_the_published_mix() {
        // As in published files: 193 Q4_K, 33 Q6_K (output, and half of attn_v and ffn_down).
        assert_eq!(count("llama-8b", "Q4_K_M", false, DType::Q6K), 33);
        assert_eq!(count("llama-8b", "Q4_K_M", false, DType::Q4K), 193);
        assert_eq!(count("llama-8b", "q4_0", false, DType::Q6K), 1);
    }

    #[test]
    fn rows_that_are_not_whole_blocks_fall_back() {
        // 576 is not a multiple of 256: only ffn_down (1536) keeps its k-quant.
        assert_eq!(count("smollm2-135m", "Q4_K_S", true, DType::Q4K), 30);
        assert_eq!(count("smollm2-135m", "Q4_K_S", true, DType::Q5_0), 6 * 30 + 1);
        assert_eq!(count("smollm2-135m", "Q4_0", false, DType::Q8_0), 1);
    }

    #[test]
    fn pure_is_one_type_throughout() {
        assert_eq!(count("llama-8b", "Q4_0", true, DType::Q4_0), 7 * 32 + 2);
    }
}
