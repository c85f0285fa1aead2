//! Sampled tokens: a device against the reference device, for various settings, sizes and logits.

use std::collections::HashSet;
use std::sync::Arc;

use akunu_format::blocks::Rng;
use akunu_plan::ops::{self, SampleParams};
use akunu_plan::random::Draws;
use akunu_plan::reference::ReferenceDevice;
use akunu_plan::sample::{
    Records, Settings, WINDOW, fraction, inverse_temperature, mask_words, part_of, record_words, share,
};
use akunu_plan::{
    BufferId, Device, DispatchCommand, DispatchTable, Entries, Kernel, Row, RowBounds, Submission, TableIo,
};
use akunu_testing::{fewest_or, some_of};

/// Calls its argument with each of the devices to test.
pub type OnDevices<'a> = dyn FnMut(&mut dyn FnMut(&mut dyn Device)) + 'a;

/// The record of a row.
#[derive(Clone, Debug, Default)]
struct Wish {
    settings: Settings,
    mask: Option<Vec<u32>>,
    biases: Vec<(u32, f32)>,
    recent: Vec<u32>,
}

/// Sampling from the same logits in every step, for chains of up to `STEPS`.
struct Case {
    vocab: usize,
    /// Per row.
    logits: Vec<Vec<f32>>,
    wishes: Vec<Wish>,
    /// The rows of the table; those beyond the wishes are not used.
    rows: usize,
}

const STEPS: usize = 3;

impl Case {
    fn new(vocab: usize, logits: Vec<Vec<f32>>, wishes: Vec<Wish>) -> Case {
        let rows = wishes.len();
        Case { vocab, logits, wishes, rows }
    }

    fn records(&self) -> Vec<u32> {
        let mut records = Records::default();
        records.clear(self.rows, STEPS);
        for Wish { settings, mask, biases, recent } in &self.wishes {
            records.push(settings, mask.as_deref(), biases, recent);
        }
        let mut words = vec![0xdead_beef; self.rows * record_words(self.vocab, STEPS)];
        words[..records.words().len()].copy_from_slice(records.words());
        words
    }

    fn table(&self) -> DispatchTable {
        let params = SampleParams { vocab: self.vocab as u32, advance: 1 };
        let command = DispatchCommand::new(Kernel::Sample(ops::Sample), (0..5).map(BufferId), params);
        DispatchTable {
            name: "test",
            commands: vec![command],
            labels: vec!["sample".into()],
            rows: self.rows,
            logit_rows: self.rows,
            steps: STEPS,
            io: TableIo::new([2, 3, 1, 0].map(BufferId)),
            bounds: RowBounds::one_sequence(self.vocab as u32, 9).into(),
            streams: akunu_plan::Streams::default(),
        }
    }

    /// The completed steps, and everything they wrote: tokens, rows and records.
    fn run(&self, device: &mut dyn Device) -> (usize, Vec<Vec<u32>>) {
        let count = self.wishes.len();
        let rows: Vec<Row> = (0..count).map(|i| Row::causal(0, i as u32 % 5, 0)).collect();
        let asked: Vec<u32> = (0..count as u32).collect();
        let mut logits: Vec<u32> = self.logits.iter().flatten().map(|l| l.to_bits()).collect();
        logits.resize(self.rows * self.vocab, f32::NAN.to_bits());
        let tokens = vec![7; (STEPS + 1) * self.rows];
        let buffers = [logits, tokens, vec![0; 4 * self.rows], vec![0; self.rows], self.records()];
        let ids = buffers.each_ref().map(|words| {
            let id = device.allocate("test", words.len() as u64 * 4).unwrap();
            device.upload(id, 0, bytemuck::cast_slice(words)).unwrap();
            id
        });
        let replay = device.prepare(&Arc::new(self.table()), &ids).unwrap();
        let submission = Submission {
            entries: Entries::Rows(&rows),
            logit_rows: &asked,
            steps: STEPS,
            stop: &[],
            cancel: None,
        };
        device.replay(replay, submission).unwrap();
        let steps = device.wait().unwrap().steps;
        let read = |i: usize| {
            let mut words = buffers[i].clone();
            device.download(ids[i], 0, bytemuck::cast_slice_mut(&mut words)).unwrap();
            words
        };
        (steps, [1, 2, 4].map(read).to_vec())
    }

    /// The tokens, on which all devices must agree, step by step.
    fn check(&self, on_devices: &mut OnDevices<'_>) -> Vec<u32> {
        let expected = self.run(&mut ReferenceDevice::new());
        on_devices(&mut |device| {
            let found = self.run(device);
            assert!(
                found == expected,
                "{} tokens, {:#?}: {:?} for {:?}",
                self.vocab,
                self.wishes,
                found.1[0],
                expected.1[0]
            );
        });
        let steps = expected.1[0][self.rows..].chunks(self.rows).take(expected.0);
        steps.flat_map(|step| &step[..self.wishes.len()]).copied().collect()
    }
}

fn normal(rng: &mut Rng, scale: f32) -> f32 {
    (0..6).map(|_| rng.uniform() * 2.0 - 1.0).sum::<f32>() * scale
}

fn wish(rng: &mut Rng, vocab: usize) -> Wish {
    let mut pick = |n: usize| (rng.next_u64() % n as u64) as usize;
    // Those of these settings cost the emulator a search of the whole vocabulary.
    let shaped = pick(6) == 0;
    let temperature = [0.0, 0.02, 0.7, 1.0, 1.0, 3.0, 1e-30, 1e30][pick(8)];
    let settings = Settings {
        inverse_temperature: inverse_temperature(temperature),
        top_k: [0, 0, 1, 2, 5, 40, 1000, 1 << 20][pick(8)],
        top_p: [u32::MAX, u32::MAX, fraction(0.0), fraction(0.3), fraction(0.9), fraction(0.999), 1, 0]
            [pick(8)],
        min_p: [f32::NEG_INFINITY, f32::NEG_INFINITY, -0.5, -3.0, 0.0, -20.0][pick(6)],
        repeat_penalty: [1.0, 1.3, 0.5][pick(3)],
        frequency_penalty: [0.0, 0.4, -0.3][pick(3)],
        presence_penalty: [0.0, 0.7][pick(2)],
        window: [0, 1, 64, 5000][pick(4)],
        seed: [pick(1 << 32) as u32, pick(1 << 32) as u32],
        draw: [[0, 0], [17, 0], [u32::MAX - 1, 3]][pick(3)],
        ..Settings::default()
    };
    let settings = match shaped {
        false => settings,
        true => Settings {
            coolest: [0.0, 0.3, 2.0][pick(3)],
            span: [0.0, 0.0, 1.5, 1e30][pick(4)],
            exponent: [1.0, 0.0, 2.7][pick(3)],
            top_n_sigma: [0.0, 0.0, 0.5, 1.0, 2.5][pick(5)],
            typical_p: [u32::MAX, u32::MAX, fraction(0.9), fraction(0.2), 0][pick(5)],
            xtc_threshold: [0, fraction(0.001), fraction(0.1), fraction(0.4)][pick(4)],
            xtc_probability: [0, 0, u32::MAX, fraction(0.5)][pick(4)],
            ..settings
        },
    };
    let mut biases: Vec<(u32, f32)> = (0..[0, 0, 3, 200][pick(4)])
        .map(|_| (pick(vocab) as u32, [f32::NEG_INFINITY, -2.5, 4.0, 0.1][pick(4)]))
        .collect();
    biases.sort_by_key(|bias| bias.0);
    biases.dedup_by_key(|bias| bias.0);
    let recent = (0..[0, 1, 50, WINDOW][pick(4)]).map(|_| pick(vocab) as u32).collect();
    // Of all tokens, of half of them, and of few.
    let mask = [None, Some(0), Some(1), Some(8)][pick(4)].map(|thinned| {
        let word = |_| (0..thinned).fold(u32::MAX, |word, _| word & pick(1 << 32) as u32);
        (0..mask_words(vocab)).map(word).collect()
    });
    Wish { settings, mask, biases, recent }
}

fn logits(rng: &mut Rng, vocab: usize) -> Vec<f32> {
    let kind = rng.next_u64() % 6;
    let mut logits: Vec<f32> = (0..vocab).map(|_| normal(rng, 3.0)).collect();
    for logit in &mut logits {
        match kind {
            // Many equal values, with zeros of both signs among them.
            0 => *logit = (*logit / 2.0).round() * 0.5,
            // All are equal.
            1 => *logit = -4.25,
            2 => *logit *= 1e-6,
            3 => *logit *= 30.0,
            _ => {}
        }
    }
    logits
}

/// Random settings, sizes and logits.
pub fn tokens_are_those_of_the_reference(on_devices: &mut OnDevices<'_>) {
    let mut rng = Rng::new(11);
    for (vocab, count) in
        [(1, 12), (2, 12), (31, 25), (257, 25), (2048, 12), (2049, 12), (5003, 25), (32_003, 4)]
    {
        for _ in some_of(0..count, 4) {
            let rows = 1 + (rng.next_u64() % 4) as usize;
            let wishes = (0..rows).map(|_| wish(&mut rng, vocab)).collect();
            let logits = (0..rows).map(|_| logits(&mut rng, vocab)).collect();
            Case::new(vocab, logits, wishes).check(on_devices);
        }
    }
}

/// As many rows as are served together, each with its own settings: more than the GPU kernels sample in one launch. Of the
/// largest table, a part of the rows as well.
pub fn many_rows_have_settings_of_their_own(on_devices: &mut OnDevices<'_>) {
    let mut rng = Rng::new(13);
    let cases = [(257, 100, 100), (40, 300, 300), (40, 300, 257), (40, 300, 90)];
    for (vocab, rows, live) in cases.into_iter().step_by(fewest_or(2, 1, 1)) {
        let wishes: Vec<Wish> = (0..live).map(|_| wish(&mut rng, vocab)).collect();
        let logits = (0..live).map(|_| logits(&mut rng, vocab)).collect();
        let found = Case { rows, ..Case::new(vocab, logits, wishes) }.check(on_devices);
        // A row that has nothing to pick ends a chain, so there is one step at least.
        assert!(found.len() >= live && found.len().is_multiple_of(live));
        let different: HashSet<u32> = found[..live].iter().copied().collect();
        assert!(different.len() > 10, "{different:?}");
    }
}

/// One row that has nothing to pick, and one with a logit that is not a number, among rows that get their tokens.
pub fn rows_without_a_token_do_not_touch_others(on_devices: &mut OnDevices<'_>) {
    let (vocab, count) = (300, 80);
    let mut rng = Rng::new(14);
    let settings = Settings { inverse_temperature: 1.0, ..Settings::default() };
    let wish = |row: usize| Wish {
        settings: Settings { seed: [row as u32, 0], ..settings },
        mask: (row == 70).then(|| vec![0; mask_words(vocab)]),
        ..Wish::default()
    };
    let mut logits: Vec<Vec<f32>> = (0..count).map(|_| logits(&mut rng, vocab)).collect();
    logits[3][299] = f32::NAN;
    let found = Case::new(vocab, logits, (0..count).map(wish).collect()).check(on_devices);
    for (row, id) in found.iter().enumerate() {
        assert_eq!(*id == u32::MAX, [3, 70].contains(&row), "row {row}: {id}");
    }
}

/// They are reported by a token that does not exist.
pub fn logits_that_are_no_numbers_and_nothing_to_pick_are_reported(on_devices: &mut OnDevices<'_>) {
    for vocab in [3, 4099] {
        let limited = Settings { inverse_temperature: 1.0, top_k: 2, ..Settings::default() };
        for settings in [Settings::default(), limited] {
            let wish = Wish { settings, ..Wish::default() };
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut logits = vec![0.5; vocab];
                logits[vocab - 1] = bad;
                let case = Case::new(vocab, vec![logits], vec![wish.clone()]);
                assert_eq!(case.check(on_devices), [u32::MAX]);
            }
        }
        // All tokens that biases can reach.
        let biases = (0..vocab.min(1000) as u32).map(|id| (id, f32::NEG_INFINITY)).collect();
        let wish = Wish { settings: limited, biases, ..Wish::default() };
        let case = Case::new(vocab, vec![vec![0.5; vocab]], vec![wish]);
        let found = case.check(on_devices);
        assert_eq!(found == [u32::MAX], vocab == 3);
        assert!(found.iter().all(|id| *id >= 1000));
    }
}

/// The higher a token's logit, the lower its noise, so that none beats another: more stairs than a part or a row
/// keeps.
pub fn tokens_that_are_all_stairs_are_walked(on_devices: &mut OnDevices<'_>) {
    for vocab in [25, 90, 2500] {
        let settings = Settings {
            inverse_temperature: 1.0,
            top_k: 3,
            seed: [5, 6],
            draw: [9, 0],
            ..Settings::default()
        };
        let mut draws = Draws::new(5 | 6 << 32, 9);
        let gumbels: Vec<f32> = (0..vocab as u32).map(|id| draws.gumbel(id)).collect();
        // Only some of a large vocabulary, so that the sequential search ends.
        let chosen: Vec<usize> = (0..vocab).step_by(vocab / 25).collect();
        let mut logits = vec![-9.0; vocab];
        for &id in &chosen {
            logits[id] = -gumbels[id] * 0.9;
        }
        for (top_k, top_p_of, min_p) in
            [(3, 1.0, f32::NEG_INFINITY), (0, 0.2, f32::NEG_INFINITY), (0, 1.0, -0.1), (1, 1.0, -9.0)]
        {
            let settings = Settings { top_k, top_p: fraction(top_p_of), min_p, ..settings };
            let wish = Wish { settings, ..Wish::default() };
            Case::new(vocab, vec![logits.clone()], vec![wish]).check(on_devices);
        }
    }
}

/// If top-p is just large enough to keep a token, a few hundred units of a sum of 2⁴⁰ decide.
pub fn sums_of_top_p_are_exact(on_devices: &mut OnDevices<'_>) {
    let mut rng = Rng::new(12);
    let vocab = 3000;
    for seed in 0..fewest_or(4, 12, 12) {
        let logits: Vec<f32> = (0..vocab).map(|_| normal(&mut rng, 1.5)).collect();
        let settings = Settings { inverse_temperature: 0.7, seed: [seed, 0], ..Settings::default() };
        let mut pick = |settings: Settings| {
            let wish = Wish { settings, ..Wish::default() };
            Case::new(vocab, vec![logits.clone()], vec![wish]).check(on_devices)[0]
        };
        let scaled: Vec<f32> = logits.iter().map(|logit| settings.scaled(*logit)).collect();
        let best = scaled.iter().copied().fold(f32::MIN, f32::max);
        let winner = pick(settings);
        let sum =
            |least: f32| -> u64 { scaled.iter().filter(|x| **x > least).map(|x| share(*x - best)).sum() };
        let (total, better) = (sum(f32::MIN), sum(scaled[winner as usize]));
        let keeps = |top_p: u32| better < part_of(total, top_p);
        let least =
            (0..32).rev().fold(u32::MAX, |p, bit| if keeps(p - (1 << bit)) { p - (1 << bit) } else { p });
        if least == u32::MAX || least == 0 {
            continue;
        }
        assert!(keeps(least) && (better == 0 || !keeps(least - 1)));
        assert_eq!(pick(Settings { top_p: least, ..settings }), winner);
        assert_eq!(pick(Settings { top_p: least - 1, ..settings }) == winner, better == 0);
    }
}
