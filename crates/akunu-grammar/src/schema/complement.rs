//! The strings that an expression does not match, as an expression: that of the automaton whose accepting states are
//! exchanged. Expressions with more than a few states are given up.

use std::collections::{BTreeSet, HashMap};

use llguidance::derivre::{Regex, StateID};

use super::regexes::escape;

const STATES: usize = 16;
/// Sets of characters that the expression tells apart.
const CLASSES: usize = 200;
/// Bytes of the result.
const LENGTH: usize = 4_000;

/// `pattern` is the source of `regex`, from which the characters are taken that it tells apart.
pub(super) fn complement(regex: &mut Regex, pattern: &str) -> Option<String> {
    let classes = classes(pattern)?;
    let start = regex.initial_state();
    let mut states = vec![start];
    let mut index = HashMap::from([(start, 0)]);
    let mut edges: Vec<Vec<(usize, String)>> = Vec::new();
    while edges.len() < states.len() {
        let from = states[edges.len()];
        let mut targets: HashMap<usize, String> = HashMap::new();
        for (first, last) in &classes {
            let to = if from == StateID::DEAD {
                from
            } else {
                regex.transition_bytes(from, first.encode_utf8(&mut [0; 4]).as_bytes())
            };
            let next = states.len();
            let to = *index.entry(to).or_insert_with(|| {
                states.push(to);
                next
            });
            let set = targets.entry(to).or_default();
            set.push_str(&escape(*first));
            if first != last {
                set.push('-');
                set.push_str(&escape(*last));
            }
        }
        if states.len() > STATES {
            return None;
        }
        let mut targets: Vec<_> = targets.into_iter().map(|(to, set)| (to, format!("[{set}]"))).collect();
        targets.sort();
        edges.push(targets);
    }
    let accepts: Vec<bool> =
        states.iter().map(|state| *state == StateID::DEAD || !regex.is_accepting(*state)).collect();
    eliminate(&edges, &accepts)
}

/// Ranges of characters between those that the expression's source has.
fn classes(pattern: &str) -> Option<Vec<(char, char)>> {
    if pattern.contains("\\p") || pattern.contains("\\P") {
        return None;
    }
    let mut cuts = BTreeSet::from([0, 0xD800, 0xE000, 0x11_0000]);
    let named = ['\t', '\n', '\r', ' '].into_iter().chain(pattern.chars()).map(u32::from);
    let escaped = pattern.split("\\x{").skip(1).filter_map(|rest| rest.split_once('}'));
    let escaped = escaped.filter_map(|(digits, _)| u32::from_str_radix(digits, 16).ok());
    for code in named.chain(escaped) {
        cuts.extend([code, code + 1]);
    }
    if cuts.len() > CLASSES {
        return None;
    }
    let cuts: Vec<u32> = cuts.into_iter().collect();
    let range = |pair: &[u32]| Some((char::from_u32(pair[0])?, char::from_u32(pair[1] - 1)?));
    // Half a surrogate pair is no character.
    Some(cuts.windows(2).filter_map(range).collect())
}

/// The expression of an automaton that starts in state 0, by removing one state after the other.
fn eliminate(edges: &[Vec<(usize, String)>], accepts: &[bool]) -> Option<String> {
    let count = edges.len();
    let (start, end) = (count, count + 1);
    let mut between: HashMap<(usize, usize), String> = HashMap::new();
    for (from, targets) in edges.iter().enumerate() {
        between.extend(targets.iter().map(|(to, set)| ((from, *to), set.clone())));
        if accepts[from] {
            between.insert((from, end), String::new());
        }
    }
    between.insert((start, 0), String::new());
    let mut left: Vec<usize> = (0..count).collect();
    while !left.is_empty() {
        let degree = |state: usize| {
            let ways_in = between.keys().filter(|(from, to)| *to == state && *from != state).count();
            let ways_out = between.keys().filter(|(from, to)| *from == state && *to != state).count();
            ways_in * ways_out
        };
        let at = (0..left.len()).min_by_key(|at| (degree(left[*at]), left[*at]))?;
        let state = left.swap_remove(at);
        let repeated = match between.remove(&(state, state)) {
            Some(again) => format!("(?:{again})*"),
            None => String::new(),
        };
        let mut ways_in: Vec<_> = between.iter().filter(|((_, to), _)| *to == state).collect();
        let mut ways_out: Vec<_> = between.iter().filter(|((from, _), _)| *from == state).collect();
        ways_in.sort();
        ways_out.sort();
        let mut through = Vec::new();
        for ((from, _), before) in &ways_in {
            for ((_, to), after) in &ways_out {
                through.push(((*from, *to), format!("{before}{repeated}{after}")));
            }
        }
        between.retain(|(from, to), _| *from != state && *to != state);
        for (ends, way) in through {
            let joined = match between.remove(&ends) {
                Some(other) => format!("(?:{other}|{way})"),
                None => way,
            };
            between.insert(ends, joined);
        }
        if between.values().map(String::len).sum::<usize>() > LENGTH {
            return None;
        }
    }
    between.remove(&(start, end))
}
