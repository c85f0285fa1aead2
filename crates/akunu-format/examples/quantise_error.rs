//! The error and the quantisation speed of each type, on one thread: the tables of
//! docs/measurements/{accuracy,quantise}.md.
//!
//! `cargo run --release -p akunu-format --example quantise_error -- FILE COLS`: FILE contains plain little-endian F32.
#![allow(clippy::print_stdout)]

use std::time::Instant;

use akunu_format::DType;
use akunu_format::blocks::{dequantize_row, quantize_row};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, cols] = &arguments[..] else { return Err("FILE and COLS are needed".into()) };
    let cols: usize = cols.parse()?;
    let bytes = std::fs::read(file)?;
    let values: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    for dtype in DType::ALL {
        let Some(row_bytes) = dtype.row_bytes(cols).filter(|_| dtype.is_quantised()) else { continue };
        let mut blocks = vec![0; row_bytes * (values.len() / cols)];
        let start = Instant::now();
        for (row, out) in values.chunks_exact(cols).zip(blocks.chunks_exact_mut(row_bytes)) {
            quantize_row(dtype, row, None, out)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        let mut decoded = vec![0.0; cols];
        let mut squares = 0.0;
        for (row, block) in values.chunks_exact(cols).zip(blocks.chunks_exact(row_bytes)) {
            dequantize_row(dtype, block, &mut decoded)?;
            squares += row.iter().zip(&decoded).map(|(x, y)| f64::from(x - y).powi(2)).sum::<f64>();
        }
        let error = (squares / values.len() as f64).sqrt();
        println!("{dtype} {error:.9} {:.1}", values.len() as f64 * 4e-6 / seconds);
    }
    Ok(())
}
