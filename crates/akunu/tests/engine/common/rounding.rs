//! Bounds on the error of rounding activations to int8.
//!
//! Goldens of quantised files do not round activations; the integer kernels do. So along golden ids:
//!
//! - with unrounded activations (the reference device, with weights dequantised to f32) every best token is the golden one;
//! - rounding moves logits by no more than it can. An activation is off by at most half a step, amax / 254; evenly spread,
//!   that is amax / 440 in the root mean square, and with amax about 2.5 times a block's root mean square a product is off
//!   by about 0.6 %. What a layer adds to the residual has gone through two or three products, so it is off by about 1 %;
//!   the errors of layers are independent and the residual grows with them, so the sum is off by about as much, and the
//!   last norm and the vocabulary's product take it to 1 or 2 %. Blocks with outliers do worse: we allow 3 %;
//! - the best token differs only where the golden one leads by less than 3 standard deviations of the difference of two
//!   such errors, and at 3 % of positions at most.

use std::sync::Arc;

use akunu::{DeviceChoice, Engine, Model};
use akunu_fixtures::Dequantised;

use super::exact;

/// An engine on the reference device that does not round activations: none of its weights is quantised.
pub fn unrounded(model: &Model) -> Engine {
    let weights = Arc::new(Dequantised::of(model.weights()));
    let dequantised = Model::from_weights(weights, model.name()).unwrap();
    Engine::new(Arc::new(dequantised), &exact(DeviceChoice::Reference)).unwrap()
}

/// Processes `ids` on each device and checks the three points above. `golden` has the most probable token after each.
pub fn follow(model: &Arc<Model>, ids: &[u32], golden: &[u32], devices: &[DeviceChoice], name: &str) {
    let unrounded = unrounded(model).logits(ids, true, None).unwrap();
    for device in devices {
        follow_on(model, ids, golden, &unrounded, *device, &format!("{name} on {device}"));
    }
}

fn follow_on(
    model: &Arc<Model>,
    ids: &[u32],
    golden: &[u32],
    unrounded: &[f32],
    device: DeviceChoice,
    name: &str,
) {
    let mut engine = Engine::new(model.clone(), &exact(device)).unwrap();
    let vocab = engine.vocab_size();
    let rounded = engine.logits(ids, true, None).unwrap();
    let (noise, signal) = noise_and_signal(&rounded, unrounded);

    let mut disagreements = Vec::new();
    let positions = rounded.chunks_exact(vocab).zip(unrounded.chunks_exact(vocab));
    for ((rounded, unrounded), &next) in positions.zip(golden) {
        assert_eq!(best(unrounded), next, "{name}: the reference does not follow the golden ids");
        let found = best(rounded);
        if found != next {
            disagreements.push(f64::from(unrounded[next as usize] - unrounded[found as usize]));
        }
    }
    let widest = disagreements.iter().copied().fold(0.0, f64::max);
    let explained = 3.0 * noise * 2f64.sqrt();
    println!(
        "{name:<28} noise {:.2} % of the signal, {} of {} differ, widest gap {widest:.3} (3σ: {explained:.3})",
        100.0 * noise / signal,
        disagreements.len(),
        ids.len(),
    );
    assert!(noise <= 0.03 * signal, "{name}: {noise} of {signal}");
    assert!(widest <= explained, "{name}: {disagreements:?}");
    assert!(disagreements.len() as f64 <= 0.03 * ids.len() as f64, "{name}: {disagreements:?}");
}

/// Root mean squares: of the difference, and of the logits about their mean.
fn noise_and_signal(rounded: &[f32], unrounded: &[f32]) -> (f64, f64) {
    let n = unrounded.len() as f64;
    let mean = unrounded.iter().map(|&l| f64::from(l)).sum::<f64>() / n;
    let rms = |sum: f64| (sum / n).sqrt();
    let differences = rounded.iter().zip(unrounded).map(|(r, u)| f64::from(r - u).powi(2));
    (rms(differences.sum()), rms(unrounded.iter().map(|&l| (f64::from(l) - mean).powi(2)).sum()))
}

pub fn best(logits: &[f32]) -> u32 {
    (0..logits.len()).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32
}
