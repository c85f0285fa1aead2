//! Where audio may be cut: at its quietest place, and without the silence around it.

use std::ops::Range;

/// Powers of ten below the loudest frame from which on nothing is heard.
const SILENCE_BELOW: f32 = 4.5;
/// The power, as a power of ten, below which nothing is heard in any case: about −75 dB of full scale.
const SILENCE: f32 = -7.0;
/// Frames that are kept before the first sound.
const MARGIN: usize = 20;
/// Frames of a pause between words.
const PAUSE: usize = 20;

/// Whether there is no sound at all in these frames, by the power of each.
pub(super) fn is_silent(loudness: &[f32]) -> bool {
    loudness.iter().all(|&power| power < SILENCE)
}

/// The part of the frames to transcribe next, of at most `window` frames: silence before it is left out, and it ends at
/// the quietest place of its second half, unless it is the last (`ends`).
pub(super) fn next_part(loudness: &[f32], window: usize, ends: bool) -> Range<usize> {
    let loudest = loudness.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let heard = |power: &f32| *power >= SILENCE.max(loudest - SILENCE_BELOW);
    let Some(first) = loudness.iter().position(heard) else { return loudness.len()..loudness.len() };
    let first = first.saturating_sub(MARGIN);
    let rest = &loudness[first..];
    if rest.len() <= window && ends {
        return first..loudness.len();
    }
    let most = window.min(rest.len());
    let places = most / 2..=most.saturating_sub(PAUSE).max(most / 2);
    let power_after =
        |place: usize| rest[place..most.min(place + PAUSE)].iter().map(|&p| 10f32.powf(p)).sum::<f32>();
    // The latest of the quietest.
    let cut = places
        .map(|place| (power_after(place), place))
        .fold((f32::INFINITY, most), |best, one| if one.0 <= best.0 { one } else { best });
    first..first + (cut.1 + PAUSE / 2).min(most).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Speech with a pause of half a second at each of these frames.
    fn speech(frames: usize, pauses: &[usize]) -> Vec<f32> {
        let mut loudness = vec![-1.0; frames];
        pauses.iter().for_each(|&at| loudness[at..at + 50].fill(-3.0));
        loudness
    }

    #[test]
    fn parts_end_in_the_last_pause_of_a_window() {
        let loudness = speech(4000, &[500, 1700, 2600]);
        let part = next_part(&loudness, 3000, false);
        assert_eq!(part.start, 0);
        assert!((2600..2650).contains(&part.end), "{part:?}");
    }

    #[test]
    fn silence_before_a_part_is_left_out_and_the_last_part_is_whole() {
        let mut loudness = vec![-9.0; 800];
        loudness.extend(speech(700, &[400]));
        assert_eq!(next_part(&loudness, 3000, true), 780..1500);
        assert_eq!(next_part(&[-9.0; 100], 3000, true), 100..100);
    }

    #[test]
    fn audio_without_pauses_is_cut_at_full_windows() {
        let part = next_part(&[-1.0; 4000], 3000, false);
        assert!(part.end > 2900 && part.end <= 3000, "{part:?}");
    }

    #[test]
    fn only_what_nobody_hears_is_silent() {
        assert!(is_silent(&[-10.0, -7.1]) && is_silent(&[]));
        assert!(!is_silent(&[-10.0, -6.9]));
    }
}
