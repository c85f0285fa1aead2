//! The search for the tokens of a window: greedy, by sampling, or with beams. It reads scored logits and decides; the
//! model is elsewhere.

use std::cmp::Ordering;

use crate::random::Draws;

use super::rules::Scored;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Method {
    Greedy,
    /// Several texts, of which the most probable one is taken.
    Sample {
        count: usize,
        temperature: f32,
        draws: Seed,
    },
    /// Ends when `width · patience` texts have ended.
    Beams {
        width: usize,
        patience: f32,
    },
}

/// Where draws come from: the same for a window whatever is decoded beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seed {
    pub seed: u64,
    /// The index of the window's first frame.
    pub frame: u64,
    /// The number of the temperature.
    pub attempt: u32,
}

/// Steps of a window; more than any decoder has positions.
const STEPS: u64 = 1 << 20;

/// A text that is being extended, in a slot of its window.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Live {
    pub tokens: Vec<u32>,
    pub log_probability: f64,
    pub slot: usize,
}

/// A text that has ended. The token of the end is not in it, and is part of its probability.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ended {
    pub tokens: Vec<u32>,
    pub log_probability: f64,
}

impl Ended {
    /// As OpenAI's, with the token of the end counted.
    pub fn mean_log_probability(&self) -> f64 {
        self.log_probability / (self.tokens.len() + 1) as f64
    }
}

/// The cache of one slot is to be copied to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copied {
    pub from: usize,
    pub to: usize,
}

#[derive(Debug)]
pub(super) struct Search {
    method: Method,
    end: u32,
    /// The most tokens of a text.
    longest: usize,
    live: Vec<Live>,
    ended: Vec<Ended>,
    steps: usize,
}

/// A text of the step before, and the token that extends it.
struct Extension {
    from: usize,
    token: u32,
    log_probability: f64,
}

impl Search {
    /// Begins in slot 0, whose cache has the prompt.
    pub fn new(method: Method, end: u32, longest: usize) -> Search {
        let live = vec![Live { tokens: Vec::new(), log_probability: 0.0, slot: 0 }];
        Search { method, end, longest, live, ended: Vec::new(), steps: 0 }
    }

    /// The most slots that a method uses.
    pub fn slots(method: Method) -> usize {
        match method {
            Method::Greedy => 1,
            Method::Sample { count, .. } => count,
            Method::Beams { width, .. } => width,
        }
    }

    /// The texts that need the logits of their next token. None: the search is over.
    pub fn live(&self) -> &[Live] {
        &self.live
    }

    /// Extends the texts by the logits of each. Caches are to be copied before the new last tokens are processed.
    pub fn advance(&mut self, rows: &[Scored<'_>]) -> Vec<Copied> {
        let extensions = match self.method {
            Method::Greedy => rows.iter().enumerate().map(greedy).collect(),
            Method::Sample { count, temperature, draws } => self.sample(rows, count, temperature, draws),
            Method::Beams { width, .. } => self.best(rows, width),
        };
        self.steps += 1;
        let copied = self.extend(extensions);
        if self.steps == self.longest || self.has_enough() {
            self.finish();
        }
        copied
    }

    /// The text with the highest mean log probability; none if the search was left before its end.
    pub fn result(mut self) -> Option<Ended> {
        let score = |ended: &Ended| ended.log_probability / ended.tokens.len().max(1) as f64;
        let mut best = 0;
        for (i, ended) in self.ended.iter().enumerate() {
            if score(ended) > score(&self.ended[best]) {
                best = i;
            }
        }
        (best < self.ended.len()).then(|| self.ended.swap_remove(best))
    }

    fn sample(&self, rows: &[Scored<'_>], count: usize, temperature: f32, draws: Seed) -> Vec<Extension> {
        let position = draws.frame * STEPS + self.steps as u64;
        let mut draw = Draws::new(draws.seed, position);
        // All begin from the same row.
        let texts = if self.steps == 0 { count } else { rows.len() };
        let one = |i: usize| {
            let (from, number) = if self.steps == 0 { (0, i) } else { (i, self.live[i].slot) };
            let share = (f64::from(draw.bits(draws.attempt << 8 | number as u32)) + 0.5) / 2f64.powi(32);
            let token = rows[from].sample(temperature, share);
            Extension { from, token, log_probability: rows[from].log_probability(token) }
        };
        (0..texts).map(one).collect()
    }

    /// The most probable extensions of all texts, best first: as many that go on as there are beams, and those that end
    /// before them.
    fn best(&self, rows: &[Scored<'_>], width: usize) -> Vec<Extension> {
        let mut all: Vec<Extension> = Vec::with_capacity(rows.len() * (width + 1));
        for (from, row) in rows.iter().enumerate() {
            all.extend(row.top(width + 1).into_iter().map(|token| Extension {
                from,
                token,
                log_probability: row.log_probability(token),
            }));
        }
        let total = |one: &Extension| self.live[one.from].log_probability + one.log_probability;
        // Stable: equal ones stay in the order of their texts.
        all.sort_by(|a, b| total(b).partial_cmp(&total(a)).unwrap_or(Ordering::Equal));
        let mut going_on = 0;
        let end = self.end;
        all.retain(|one| {
            let kept = going_on < width && one.log_probability > f64::NEG_INFINITY;
            going_on += usize::from(kept && one.token != end);
            kept
        });
        all
    }

    fn extend(&mut self, extensions: Vec<Extension>) -> Vec<Copied> {
        let before = std::mem::take(&mut self.live);
        let mut is_kept = vec![false; before.len()];
        let mut used = vec![false; Search::slots(self.method)];
        let mut moving = Vec::new();
        for Extension { from, token, log_probability } in extensions {
            let parent = &before[from];
            let log_probability = parent.log_probability + log_probability;
            if token == self.end {
                if self.ended.len() < self.most_ended() {
                    self.ended.push(Ended { tokens: parent.tokens.clone(), log_probability });
                }
                continue;
            }
            let tokens = parent.tokens.iter().copied().chain([token]).collect();
            // The first extension of a text stays in its slot; others get one that becomes free.
            if is_kept[from] {
                moving.push((self.live.len(), parent.slot));
            }
            is_kept[from] = true;
            used[parent.slot] = true;
            self.live.push(Live { tokens, log_probability, slot: parent.slot });
        }
        let free = (0..used.len()).filter(|&slot| !used[slot]);
        let moves = moving.into_iter().zip(free).map(|((live, from), to)| {
            self.live[live].slot = to;
            Copied { from, to }
        });
        moves.collect()
    }

    fn most_ended(&self) -> usize {
        match self.method {
            Method::Beams { width, patience } => ((width as f32 * patience).round() as usize).max(1),
            _ => usize::MAX,
        }
    }

    fn has_enough(&self) -> bool {
        self.live.is_empty() || self.ended.len() >= self.most_ended()
    }

    /// Texts that are not over count as ended where too few are.
    fn finish(&mut self) {
        let wanted = match self.method {
            Method::Beams { width, .. } => width,
            _ => usize::MAX,
        };
        let mut live = std::mem::take(&mut self.live);
        live.sort_by(|a, b| b.log_probability.total_cmp(&a.log_probability));
        let missing = wanted.saturating_sub(self.ended.len());
        self.ended.extend(
            live.into_iter()
                .take(missing)
                .map(|Live { tokens, log_probability, .. }| Ended { tokens, log_probability }),
        );
        if self.ended.is_empty() {
            self.ended.push(Ended { tokens: Vec::new(), log_probability: 0.0 });
        }
    }
}

fn greedy((from, row): (usize, &Scored<'_>)) -> Extension {
    let token = row.most_probable();
    Extension { from, token, log_probability: row.log_probability(token) }
}
