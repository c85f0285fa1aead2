//! When each token of a transcript is said: dynamic time warping along the attention of the decoder to the audio.
//!
//! As in OpenAI's implementation: the scores of the chosen heads become weights over the frames of the audio, each
//! frame's weights are standardised over the tokens, smoothed along time, and averaged over the heads. The path through
//! the resulting matrix that follows the largest numbers, and goes back neither in tokens nor in time, says at which
//! frame each token begins.

use std::ops::Range;

use crate::Error;
use crate::memory::reserved;

/// Positions of the median filter along time.
const FILTER: usize = 7;

/// A standard deviation of this much of the mean is the rounding of equal numbers.
const ROUNDING: f64 = 1e-12;

/// Scores of attention before softmax: `[token][head][position]`.
#[derive(Clone, Copy, Debug)]
pub struct Scores<'a> {
    pub values: &'a [f32],
    pub heads: usize,
    /// Positions of a window.
    pub positions: usize,
}

impl Scores<'_> {
    pub fn tokens(&self) -> usize {
        self.values.len().checked_div(self.heads * self.positions).unwrap_or(0)
    }

    fn row(&self, token: usize, head: usize) -> &[f32] {
        &self.values[(token * self.heads + head) * self.positions..][..self.positions]
    }
}

/// The frame at which each of these tokens begins. `frames`: how many positions of the window have audio; without any,
/// there are no results.
///
/// Tokens before and after `tokens` take part in standardising, and not in the path: for OpenAI's results, the scores
/// are those of the whole sequence from the start of the transcript to its end, and `tokens` those from
/// `<|notimestamps|>` to the last of the text. The frame of a token is then where the following one is said.
pub fn first_frames(scores: Scores<'_>, frames: usize, tokens: Range<usize>) -> Result<Vec<usize>, Error> {
    let frames = frames.min(scores.positions);
    let matrix = matrix(scores, frames)?;
    let tokens = tokens.start.min(scores.tokens())..tokens.end.min(scores.tokens());
    let (from, to) = (tokens.start * frames, tokens.end.max(tokens.start) * frames);
    path(&matrix[from..to], frames)
}

/// `[token][frame]`: how much more a token attends to a frame than other tokens do, as the mean of the heads.
pub fn matrix(scores: Scores<'_>, frames: usize) -> Result<Vec<f64>, Error> {
    let frames = frames.min(scores.positions);
    let count = scores.tokens() * frames;
    let mut weights = reserved("the weights of a head", count)?;
    let mut matrix = reserved("the alignment of a window", count)?;
    matrix.resize(count, 0.0);
    if frames == 0 {
        return Ok(matrix);
    }
    for head in 0..scores.heads {
        weights.clear();
        for token in 0..scores.tokens() {
            push_softmax(&scores.row(token, head)[..frames], &mut weights);
        }
        standardise(&mut weights, frames);
        for (sums, row) in matrix.chunks_exact_mut(frames).zip(weights.chunks_exact(frames)) {
            for (frame, sum) in sums.iter_mut().enumerate() {
                *sum += median(row, frame) / scores.heads as f64;
            }
        }
    }
    Ok(matrix)
}

fn push_softmax(scores: &[f32], to: &mut Vec<f64>) {
    let most = f64::from(scores.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let first = to.len();
    to.extend(scores.iter().map(|score| (f64::from(*score) - most).exp()));
    let share = 1.0 / to[first..].iter().sum::<f64>();
    to[first..].iter_mut().for_each(|weight| *weight *= share);
}

/// Subtracts the mean over the tokens from each frame's weights and divides by their standard deviation. Frames with
/// equal weights, for which OpenAI's code has no number, become 0.
fn standardise(weights: &mut [f64], frames: usize) {
    let share = 1.0 / (weights.len() / frames) as f64;
    let mut means = vec![0.0; frames];
    for row in weights.chunks_exact(frames) {
        means.iter_mut().zip(row).for_each(|(mean, weight)| *mean += weight * share);
    }
    let mut variances = vec![0.0; frames];
    for row in weights.chunks_exact_mut(frames) {
        for ((weight, mean), variance) in row.iter_mut().zip(&means).zip(&mut variances) {
            *weight -= mean;
            *variance += *weight * *weight * share;
        }
    }
    let factor = |(variance, mean): (&f64, &f64)| {
        let deviation = variance.sqrt();
        if deviation > ROUNDING * mean { 1.0 / deviation } else { 0.0 }
    };
    let factors: Vec<f64> = variances.iter().zip(&means).map(factor).collect();
    for row in weights.chunks_exact_mut(frames) {
        row.iter_mut().zip(&factors).for_each(|(weight, factor)| *weight *= factor);
    }
}

/// The median of the values around one, with the row reflected at its ends. Rows too short for that stay as they are.
fn median(row: &[f64], at: usize) -> f64 {
    let (half, last) = (FILTER / 2, row.len() - 1);
    if row.len() <= half {
        return row[at];
    }
    let reflected = |i: usize| {
        let index = (at + i).abs_diff(half);
        row[if index > last { 2 * last - index } else { index }]
    };
    let mut values: [f64; FILTER] = std::array::from_fn(reflected);
    // The largest ones move to the end, up to the median.
    for end in (half..FILTER).rev() {
        for i in 0..end {
            let (a, b) = (values[i], values[i + 1]);
            (values[i], values[i + 1]) = (a.min(b), a.max(b));
        }
    }
    values[half]
}

/// A step of the path to a cell: from which neighbour it comes.
#[derive(Clone, Copy, PartialEq)]
enum Step {
    Both,
    Token,
    Frame,
}

/// The first frame of each row on the path from the first cell to the last one along which the sum is largest.
///
/// Sums are f32 and ties are resolved as in OpenAI's code, so that equal matrices give equal paths. Only one column of
/// sums exists at a time; the steps take a byte a cell.
pub fn path(matrix: &[f64], frames: usize) -> Result<Vec<usize>, Error> {
    let tokens = matrix.len().checked_div(frames).unwrap_or(0);
    if tokens == 0 {
        return Ok(vec![]);
    }
    let mut steps = reserved("the steps of an alignment", tokens * frames)?;
    // The sums of a column, after that of a row above the matrix, from where only the first cell is reached.
    let mut costs = vec![f32::INFINITY; tokens + 1];
    costs[0] = 0.0;
    for frame in 0..frames {
        let mut diagonal = std::mem::replace(&mut costs[0], f32::INFINITY);
        for token in 0..tokens {
            let (above, left) = (costs[token], costs[token + 1]);
            let (cost, step) = match () {
                () if diagonal < above && diagonal < left => (diagonal, Step::Both),
                () if above < diagonal && above < left => (above, Step::Token),
                () => (left, Step::Frame),
            };
            costs[token + 1] = (f64::from(cost) - matrix[token * frames + frame]) as f32;
            steps.push(step);
            diagonal = left;
        }
    }
    // The path reaches the first token in the first frame.
    let mut first = vec![0; tokens];
    let (mut token, mut frame) = (tokens - 1, frames - 1);
    while token > 0 {
        first[token] = frame;
        match steps[frame * tokens + token] {
            Step::Both if frame > 0 => (token, frame) = (token - 1, frame - 1),
            Step::Frame if frame > 0 => frame -= 1,
            _ => token -= 1,
        }
    }
    Ok(first)
}
