//! The output of a generation: pieces of text, and the reason to end.

use std::ops::ControlFlow;
use std::sync::Arc;

use akunu_tokenizer::{StreamDecoder, Tokenizer};

use crate::stop::{Scan, StopStrings};
use crate::{FinishReason, GenerateOptions, Model, Piece};

pub(crate) type OnPiece<'a> = &'a mut dyn FnMut(Piece<'_>) -> ControlFlow<()>;

/// Buffer space for the text of one token. Longer tokens are rare; the buffer grows for them.
const TOKEN_BYTES: usize = 4096;

/// The generated tokens, their text, and the stop conditions. Allocates when created, and later only to grow.
#[derive(Debug)]
pub(crate) struct Output {
    tokenizer: Option<Arc<dyn Tokenizer>>,
    decoder: StreamDecoder,
    stops: StopStrings,
    /// Control tokens that are part of the text.
    visible: Vec<u32>,
    /// Maximum number of tokens.
    max_tokens: usize,
    /// Ids that end the text: first the model's, then the request's.
    endings: Vec<u32>,
    /// How many of `endings` are the model's.
    eos_count: usize,
    /// The prompt and the generated ids.
    history: Vec<u32>,
    prompt_len: usize,
    /// Ids since the previous piece.
    unsent: Vec<u32>,
}

impl Output {
    /// `context` limits the expected length, for allocation.
    pub(crate) fn new(model: &Model, prompt: &[u32], options: &GenerateOptions, context: usize) -> Output {
        let max_tokens = options.max_tokens.unwrap_or(usize::MAX);
        let expected = max_tokens.min(context);
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
            max_tokens,
            endings,
            eos_count,
            history,
            prompt_len: prompt.len(),
            unsent: Vec::with_capacity(expected),
        };
        output.read_prompt();
        output
    }

    /// Feeds the prompt to the decoder, whose state the text depends on: the prompt may end inside a character.
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

    /// The prompt and the generated ids.
    pub(crate) fn history(&self) -> &[u32] {
        &self.history
    }

    pub(crate) fn prompt(&self) -> &[u32] {
        &self.history[..self.prompt_len]
    }

    pub(crate) fn ids(&self) -> &[u32] {
        &self.history[self.prompt_len..]
    }

    /// Number of tokens that may still be generated.
    pub(crate) fn left(&self) -> usize {
        self.max_tokens - self.ids().len()
    }

    /// Adds the next token; returns a reason if it is the last. An id that ends the text is not part of it.
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
        let flow = on_piece(Piece { text: &self.stops.held[..certain], ids: &self.unsent, logprobs: &[] });
        self.stops.release(certain);
        self.unsent.clear();
        flow
    }

    /// Sends the text that was held back, at the end of the generation.
    pub(crate) fn flush(&mut self, on_piece: OnPiece<'_>) {
        if self.tokenizer.is_some() {
            self.decoder.finish(&mut self.stops.held);
        }
        if !self.stops.held.is_empty() || !self.unsent.is_empty() {
            // The result is ignored, because this is the last piece.
            let _ = self.send(self.stops.held.len(), on_piece);
        }
    }
}
