//! The special tokens that a model expects before a text, after it, and between two texts.

use std::ops::Range;

use crate::{Model, SpecialTokens};

/// The tokens of one text or of two, with the special tokens around them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoding {
    pub ids: Vec<u32>,
    /// The segment of each token (`token_type_ids` in transformers), for models with token types.
    pub segments: Vec<u32>,
    /// The token range of each text; the second range is empty if there is only one text.
    texts: [Range<usize>; 2],
}

impl Encoding {
    /// Truncates to `most` tokens and returns whether any were removed. As transformers does by default
    /// (`longest_first`), tokens are removed from the end of each text, from the longer text first, and the special
    /// tokens around them are kept if `most` leaves space for them.
    pub fn truncate(&mut self, most: usize) -> bool {
        if self.ids.len() <= most {
            return false;
        }
        let lengths = [self.texts[0].len(), self.texts[1].len()];
        let around = self.ids.len() - lengths[0] - lengths[1];
        let kept = shares(lengths, most.saturating_sub(around));
        let mut places = [0, 1];
        places.sort_by_key(|&place| std::cmp::Reverse(self.texts[place].start));
        for place in places {
            let cut = self.texts[place].start + kept[place]..self.texts[place].end;
            self.ids.drain(cut.clone());
            self.segments.drain(cut.clone());
            for text in &mut self.texts {
                if text.start >= cut.end {
                    *text = text.start - cut.len()..text.end - cut.len();
                }
            }
            self.texts[place].end = cut.start;
        }
        self.ids.truncate(most);
        self.segments.truncate(most);
        for text in &mut self.texts {
            *text = text.start.min(most)..text.end.min(most);
        }
        true
    }
}

/// How many tokens of each text are kept, if both together may have `most` and have more.
fn shares([first, second]: [usize; 2], most: usize) -> [usize; 2] {
    let shorter = first.min(second).min(most / 2);
    if first > second { [most - shorter, shorter] } else { [shorter, most - shorter] }
}

/// A part of a template, with the segment of its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Token {
        id: u32,
        segment: u32,
    },
    /// The first or the second text.
    Text {
        place: usize,
        segment: u32,
    },
}

/// The special tokens around one text, and around two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// Contains the text once.
    single: Vec<Piece>,
    /// Contains each text once; `None` if the vocabulary requires something that cannot be represented.
    pair: Option<Vec<Piece>>,
}

impl Template {
    /// `None` unless the single template contains its text once.
    pub(crate) fn new(single: Vec<Piece>, pair: Option<Vec<Piece>>) -> Option<Template> {
        let takes = |pieces: &[Piece], wanted: usize| {
            pieces
                .iter()
                .filter(|piece| matches!(piece, Piece::Text { place, .. } if *place == wanted))
                .count()
        };
        let pair = pair.filter(|pair| takes(pair, 0) == 1 && takes(pair, 1) == 1);
        (takes(&single, 0) == 1 && takes(&single, 1) == 0).then_some(Template { single, pair })
    }

    /// No special tokens. `second`: the segment of the second text of a pair.
    pub(crate) fn empty(second: u32) -> Template {
        let [a, b] = [Piece::Text { place: 0, segment: 0 }, Piece::Text { place: 1, segment: second }];
        Template { single: vec![a], pair: Some(vec![a, b]) }
    }

    /// The same tokens around one text and around two, with `between` between two, and one segment for each text with
    /// its end.
    pub(crate) fn from_ids(before: &[u32], between: &[u32], after: &[u32], second: u32) -> Template {
        let tokens = |ids: &[u32], segment: u32| -> Vec<Piece> {
            ids.iter().map(|&id| Piece::Token { id, segment }).collect()
        };
        let text = |place: usize, segment: u32| vec![Piece::Text { place, segment }];
        let single = [tokens(before, 0), text(0, 0), tokens(after, 0)].concat();
        let first = [tokens(before, 0), text(0, 0), tokens(between, 0)];
        let pair = [first.concat(), text(1, second), tokens(after, second)].concat();
        Template { single, pair: Some(pair) }
    }

    /// The template given by the flags of a GGUF file. For pairs llama.cpp's convention is begin, text, end, separator,
    /// text, end, with each token only if its flag is set. In WordPiece vocabularies the separator ends every text, and
    /// a second text has its own segment.
    pub(crate) fn from_flags(special: &SpecialTokens, model: Model) -> Template {
        let wanted = |flag: bool, id: Option<u32>| id.filter(|_| flag);
        let begin = wanted(special.add_bos, special.bos);
        let separator = wanted(special.add_separator, special.separator);
        let end = wanted(special.add_eos, special.eos);
        let (end, between) = match model {
            Model::WordPiece => {
                let end = special.separator.filter(|_| special.add_eos || special.add_separator).or(end);
                (end, separator.filter(|_| special.add_eos))
            }
            _ => (end, separator),
        };
        let between: Vec<u32> = end.into_iter().chain(between).collect();
        let segments = model == Model::WordPiece && between.len() < 2;
        Template::from_ids(begin.as_slice(), &between, end.as_slice(), segments.into())
    }

    /// Tokens before one text.
    pub fn before(&self) -> impl Iterator<Item = u32> {
        self.single.iter().map_while(Piece::token)
    }

    /// Tokens after one text.
    pub fn after(&self) -> impl Iterator<Item = u32> {
        let text = self.single.iter().position(|piece| piece.token().is_none()).unwrap_or(self.single.len());
        self.single[text..].iter().filter_map(Piece::token)
    }

    /// The tokens between two texts; `None` unless pairs are begin, first text, something, second text, end, with the
    /// same begin and end as for one text.
    pub(crate) fn between(&self) -> Option<Vec<u32>> {
        let pair = self.pair.as_ref()?;
        let places: Vec<usize> = (0..pair.len()).filter(|&at| pair[at].token().is_none()).collect();
        let [first, second] = places[..] else { return None };
        let tokens = |pieces: &[Piece]| -> Vec<u32> { pieces.iter().filter_map(Piece::token).collect() };
        let same = self.before().eq(tokens(&pair[..first])) && self.after().eq(tokens(&pair[second..]));
        let in_order = matches!(pair[first], Piece::Text { place: 0, .. });
        (same && in_order).then(|| tokens(&pair[first..second]))
    }

    /// All special tokens of the template.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = u32> {
        self.single.iter().chain(self.pair.iter().flatten()).filter_map(Piece::token)
    }

    /// Adds or removes `id` before every text. As in transformers' LLaMA tokenizers, a pair is then the concatenation
    /// of two single texts.
    pub(crate) fn set_first(&mut self, id: u32, wanted: bool) {
        let after = self.after().collect::<Vec<u32>>();
        let rest = self.before().filter(|&other| other != id);
        let before: Vec<u32> = Some(id).filter(|_| wanted).into_iter().chain(rest).collect();
        self.set(&before, &after);
    }

    /// The same for the token at the end.
    pub(crate) fn set_last(&mut self, id: u32, wanted: bool) {
        let before = self.before().collect::<Vec<u32>>();
        let rest = self.after().filter(|&other| other != id);
        let after: Vec<u32> = rest.chain(Some(id).filter(|_| wanted)).collect();
        self.set(&before, &after);
    }

    fn set(&mut self, before: &[u32], after: &[u32]) {
        if self.before().eq(before.iter().copied()) && self.after().eq(after.iter().copied()) {
            return;
        }
        let one = |place: usize| {
            let segment = place as u32;
            let token = move |&id: &u32| Piece::Token { id, segment };
            let before = before.iter().map(token);
            before.chain([Piece::Text { place, segment }]).chain(after.iter().map(token))
        };
        *self = Template { single: one(0).collect(), pair: Some(one(0).chain(one(1)).collect()) };
    }

    /// The encoding of one text.
    pub(crate) fn single(&self, text: &[u32], add_special: bool) -> Encoding {
        fill(&self.single, [text, &[]], add_special)
    }

    /// The encoding of two texts; `None` if the template cannot represent pairs.
    pub(crate) fn pair(&self, texts: [&[u32]; 2], add_special: bool) -> Option<Encoding> {
        Some(fill(self.pair.as_ref()?, texts, add_special))
    }
}

impl Piece {
    fn token(&self) -> Option<u32> {
        match *self {
            Piece::Token { id, .. } => Some(id),
            Piece::Text { .. } => None,
        }
    }
}

fn fill(pieces: &[Piece], texts: [&[u32]; 2], add_special: bool) -> Encoding {
    let mut out = Encoding::default();
    for piece in pieces {
        let start = out.ids.len();
        let segment = match *piece {
            Piece::Token { .. } if !add_special => continue,
            Piece::Token { id, segment } => {
                out.ids.push(id);
                segment
            }
            Piece::Text { place, segment } => {
                out.ids.extend_from_slice(texts[place]);
                out.texts[place] = start..out.ids.len();
                segment
            }
        };
        out.segments.resize(out.ids.len(), segment);
    }
    out
}

/// Truncates the tokens of one text: see [`crate::Tokenizer::truncate`].
pub(crate) fn truncate(ids: &mut Vec<u32>, most: usize, template: &Template) -> bool {
    if ids.len() <= most {
        return false;
    }
    let (before, after): (Vec<u32>, Vec<u32>) = (template.before().collect(), template.after().collect());
    let first = if ids.starts_with(&before) { before.len() } else { 0 };
    let kept = if ids.ends_with(&after) { after.len().min(most.saturating_sub(first)) } else { 0 };
    ids.truncate(most - kept);
    ids.extend_from_slice(&after[..kept]);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLS: u32 = 101;
    const SEP: u32 = 102;

    fn flags(add_bos: bool, add_eos: bool, add_separator: bool) -> SpecialTokens {
        let (bos, eos, separator) = (Some(1), Some(2), Some(3));
        SpecialTokens { bos, eos, separator, add_bos, add_eos, add_separator, ..SpecialTokens::default() }
    }

    fn pair_of(special: &SpecialTokens, model: Model) -> (Vec<u32>, Vec<u32>) {
        let pair = Template::from_flags(special, model).pair([&[10, 11], &[20]], true).unwrap();
        (pair.ids, pair.segments)
    }

    fn single_of(special: &SpecialTokens, model: Model) -> Vec<u32> {
        Template::from_flags(special, model).single(&[10], true).ids
    }

    #[test]
    fn flags_of_gguf_files_match_llama_cpp() {
        for model in [Model::ByteLevel, Model::Unigram, Model::SentencePiece] {
            // RoBERTa and XLM-RoBERTa as converters write them; the separator is used for pairs only.
            assert_eq!(pair_of(&flags(true, true, true), model).0, [1, 10, 11, 2, 3, 20, 2]);
            assert_eq!(single_of(&flags(true, true, true), model), [1, 10, 2]);
            assert_eq!(pair_of(&flags(true, true, false), model).0, [1, 10, 11, 2, 20, 2]);
            assert_eq!(pair_of(&flags(true, false, false), model), (vec![1, 10, 11, 20], vec![0; 4]));
            assert_eq!(pair_of(&flags(false, false, true), model).0, [10, 11, 3, 20]);
            assert_eq!(single_of(&flags(false, false, true), model), [10]);
        }
    }

    #[test]
    fn wordpiece_ends_texts_with_the_separator_and_has_two_segments() {
        for special in [flags(true, true, false), flags(true, false, true)] {
            let (ids, segments) = pair_of(&special, Model::WordPiece);
            assert_eq!((ids, segments), (vec![1, 10, 11, 3, 20, 3], vec![0, 0, 0, 0, 1, 1]));
            assert_eq!(single_of(&special, Model::WordPiece), [1, 10, 3]);
        }
        let without = SpecialTokens { separator: None, ..flags(true, true, false) };
        assert_eq!(single_of(&without, Model::WordPiece), [1, 10, 2]);
        // MPNet has the same template as RoBERTa, and one segment.
        let mpnet = pair_of(&flags(true, true, true), Model::WordPiece);
        assert_eq!(mpnet, (vec![1, 10, 11, 3, 3, 20, 3], vec![0; 7]));
        assert_eq!(single_of(&flags(false, false, false), Model::WordPiece), [10]);
    }

    #[test]
    fn the_longer_text_is_shortened_first() {
        let template = Template::from_ids(&[CLS], &[SEP], &[SEP], 1);
        let cut = |a: usize, b: usize, most: usize| {
            let (a, b): (Vec<u32>, Vec<u32>) = ((1..=a as u32).collect(), (201..=200 + b as u32).collect());
            let mut pair = template.pair([&a, &b], true).unwrap();
            let changed = pair.truncate(most);
            assert_eq!(pair.segments.len(), pair.ids.len());
            assert_eq!(pair.texts[0].len() + pair.texts[1].len() + 3, pair.ids.len().max(3));
            (changed, pair.ids)
        };
        assert_eq!(cut(2, 3, 8), (false, vec![CLS, 1, 2, SEP, 201, 202, 203, SEP]));
        assert_eq!(cut(2, 3, 7), (true, vec![CLS, 1, 2, SEP, 201, 202, SEP]));
        assert_eq!(cut(5, 1, 6), (true, vec![CLS, 1, 2, SEP, 201, SEP]));
        // An odd token goes to the longer text, or to the second of two texts of equal length.
        assert_eq!(cut(3, 2, 6), (true, vec![CLS, 1, 2, SEP, 201, SEP]));
        assert_eq!(cut(3, 3, 6), (true, vec![CLS, 1, SEP, 201, 202, SEP]));
        assert_eq!(cut(9, 9, 3), (true, vec![CLS, SEP, SEP]));
        assert_eq!(cut(9, 9, 2), (true, vec![CLS, SEP]));
        assert_eq!(cut(9, 9, 0), (true, vec![]));
        // Truncated twice.
        let mut pair = template.pair([&[1, 2, 3, 4], &[201, 202, 203]], true).unwrap();
        assert!(pair.truncate(9) && pair.truncate(7));
        assert_eq!(pair.ids, [CLS, 1, 2, SEP, 201, 202, SEP]);
        assert_eq!(pair.segments, [0, 0, 0, 0, 1, 1, 1]);
    }

    #[test]
    fn one_text_keeps_its_end() {
        let template = Template::from_ids(&[CLS], &[SEP], &[SEP, 7], 1);
        for (most, expected) in [
            (6, vec![CLS, 1, 2, 3, SEP, 7]),
            (5, vec![CLS, 1, 2, SEP, 7]),
            (3, vec![CLS, SEP, 7]),
            (2, vec![CLS, SEP]),
            (0, vec![]),
        ] {
            let mut whole = template.single(&[1, 2, 3], true);
            let mut ids = whole.ids.clone();
            assert_eq!((whole.truncate(most), truncate(&mut ids, most, &template)), (most < 6, most < 6));
            assert_eq!((&whole.ids, &ids), (&expected, &expected));
            assert_eq!(whole.segments, vec![0; expected.len()]);
        }
        // Without special tokens there is nothing to keep.
        let mut ids = vec![1, 2, 3];
        assert!(truncate(&mut ids, 2, &template));
        assert_eq!(ids, [1, 2]);
    }

    #[test]
    fn an_overriding_flag_makes_a_pair_of_two_single_texts() {
        let mut template = Template::from_ids(&[1], &[], &[], 1);
        let before = template.clone();
        template.set_first(1, true);
        template.set_last(2, false);
        assert_eq!(template, before);
        template.set_last(2, true);
        let pair = template.pair([&[10], &[20]], true).unwrap();
        assert_eq!((pair.ids, pair.segments), (vec![1, 10, 2, 1, 20, 2], vec![0, 0, 0, 1, 1, 1]));
        template.set_first(1, false);
        assert_eq!(template.single(&[10], true).ids, [10, 2]);
        assert_eq!((template.between(), before.between()), (Some(vec![2]), Some(vec![])));
    }
}
