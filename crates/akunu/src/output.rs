//! What becomes of the tokens that are generated: text in pieces, and the reason to end.

use std::ops::ControlFlow;
use std::sync::Arc;

use akunu_tokenizer::{StreamDecoder, Tokenizer};

use crate::stop::{Scan, StopStrings};
use crate::{FinishReason, GenerateOptions, Model, Piece};

pub(crate) type OnPiece<'a> = &'a mut dyn FnMut(Piece<'_>) -> ControlFlow<()>;

/// Bytes that one token may add to a text before a buffer grows. Longer tokens exist; they are rare.
const TOKEN_BYTES: usize = 4096;

/// The tokens generated so far, their text, and what ends them. Allocates when it is made, then only to grow.
#[derive(Debug)]
pub(crate) struct Output {
    tokenizer: Option<Arc<dyn Tokenizer>>,
    decoder: StreamDecoder,
    stops: StopStrings,
    /// Control tokens that have text.
    visible: Vec<u32>,
    /// Tokens that may come.
    most: usize,
    /// Ids that end the text: the model's own, then the caller's.
    endings: Vec<u32>,
    /// How many of `endings` are the model's own.
    eos_count: usize,
    /// The prompt and what was generated.
    history: Vec<u32>,
    prompt_len: usize,
    /// Ids since the last piece.
    unsent: Vec<u32>,
}

impl Output {
    /// `context` is how much to expect.
    pub(crate) fn new(model: &Model, prompt: &[u32], options: &GenerateOptions, context: usize) -> Output {
        let most = options.max_tokens.unwrap_or(usize::MAX);
        let expected = most.min(context);
        let mut endings = if options.ignore_eos { Vec::new() } else { model.eos_ids().to_vec() };
        let eos_count = endings.len();
        endings.extend(&options.stop_ids);
        let mut history = Vec::with_capacity(prompt.len() + expected);
        history.extend_from_slice(prompt);
        let mut output = Output {
            tokenizer: model.tokenizer().ok().cloned(),
            decoder: StreamDecoder::new(),
            stops: StopStrings::new(options.stop_strings.clone(), TOKEN_BYTES),
            visible: options.visible_ids.clone(),
            most,
            endings,
            eos_count,
            history,
            prompt_len: prompt.len(),
            unsent: Vec::with_capacity(expected),
        };
        output.read_prompt();
        output
    }

    /// The text goes on where the prompt's ends: perhaps inside a character, perhaps before the first word.
    fn read_prompt(&mut self) {
        let Some(tokenizer) = &self.tokenizer else { return };
        for &id in &self.history {
            self.decoder.push(&**tokenizer, id, &mut self.stops.held);
            self.stops.held.clear();
        }
    }

    pub(crate) fn endings(&self) -> &[u32] {
        &self.endings
    }

    /// The prompt and what was generated.
    pub(crate) fn history(&self) -> &[u32] {
        &self.history
    }

    pub(crate) fn prompt(&self) -> &[u32] {
        &self.history[..self.prompt_len]
    }

    pub(crate) fn ids(&self) -> &[u32] {
        &self.history[self.prompt_len..]
    }

    /// Tokens that may still come.
    pub(crate) fn left(&self) -> usize {
        self.most - self.ids().len()
    }

    /// Takes the next token, and says if it is the last. An id that ends the text is not part of it.
    pub(crate) fn take(&mut self, id: u32, on_piece: OnPiece<'_>) -> Option<FinishReason> {
        if let Some(place) = self.endings.iter().position(|&e| e == id) {
            self.flush(on_piece);
            let is_eos = place < self.eos_count;
            return Some(if is_eos { FinishReason::Eos(id) } else { FinishReason::StopId(id) });
        }
        self.history.push(id);
        self.unsent.push(id);
        if let Some(tokenizer) = &self.tokenizer {
            match tokenizer.token_text(id).filter(|_| self.visible.contains(&id)) {
                Some(text) => self.decoder.push_bytes(text.as_bytes(), &mut self.stops.held),
                None => self.decoder.push(&**tokenizer, id, &mut self.stops.held),
            }
        }
        let Scan { certain, stop } = self.stops.scan();
        let wants_piece = certain > 0 || stop.is_some() || self.tokenizer.is_none();
        let flow = if wants_piece { self.send(certain, on_piece) } else { ControlFlow::Continue(()) };
        if let Some(stop) = stop {
            return Some(FinishReason::StopString(self.stops.get(stop).to_string()));
        }
        if flow.is_break() {
            return Some(FinishReason::Callback);
        }
        if self.left() == 0 {
            self.flush(on_piece);
            return Some(FinishReason::MaxTokens);
        }
        None
    }

    fn send(&mut self, certain: usize, on_piece: OnPiece<'_>) -> ControlFlow<()> {
        let flow = on_piece(Piece { text: &self.stops.held[..certain], ids: &self.unsent });
        self.stops.release(certain);
        self.unsent.clear();
        flow
    }

    /// Gives out what was held back: nothing more can turn it into a stop string or a whole character.
    pub(crate) fn flush(&mut self, on_piece: OnPiece<'_>) {
        if self.tokenizer.is_some() {
            self.decoder.finish(&mut self.stops.held);
        }
        if !self.stops.held.is_empty() || !self.unsent.is_empty() {
            // Whatever it answers, this was the last piece.
            let _ = self.send(self.stops.held.len(), on_piece);
        }
    }
}
