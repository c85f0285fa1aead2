//! The parts of an answer, in Dynamo's form.

use akunu::schedule::{Finished, TokenLogprob};
use akunu::{FinishReason, GenerateOptions};
use dynamo_backend_common::{
    CompletionUsage, FinishReason as Ending, LLMEngineOutput, LLMEngineOutputExt, PromptTokensDetails,
    StopReason, TopLogprob, usage,
};

use crate::request::Shown;

/// What the parts of an answer depend on.
#[derive(Debug)]
pub(crate) struct Answer {
    prompt_tokens: usize,
    sent: usize,
    has_logprobs: bool,
    shown: Shown,
}

impl Answer {
    pub(crate) fn new(prompt_tokens: usize, options: &GenerateOptions, shown: Shown) -> Answer {
        Answer { prompt_tokens, sent: 0, has_logprobs: options.logprobs.is_some(), shown }
    }

    pub(crate) fn piece(&mut self, ids: Vec<u32>, logprobs: Vec<TokenLogprob>) -> LLMEngineOutput {
        self.sent += ids.len();
        let output = LLMEngineOutput::default().with_tokens(ids);
        if !self.has_logprobs {
            return output;
        }
        LLMEngineOutput {
            log_probs: Some(logprobs.iter().map(|of_token| f64::from(of_token.logprob)).collect()),
            top_logprobs: Some(logprobs.into_iter().map(|of_token| top(&of_token)).collect()),
            ..output
        }
    }

    pub(crate) fn cancelled(&self) -> LLMEngineOutput {
        LLMEngineOutput::cancelled().with_usage(self.usage(0))
    }

    pub(crate) fn finished(&mut self, finished: Finished) -> LLMEngineOutput {
        let (ending, stop) = match &finished.finish {
            FinishReason::Eos(id) => (Ending::EoS, Some(Stop::Id(*id))),
            FinishReason::StopId(id) => (Ending::Stop, Some(Stop::Id(*id))),
            FinishReason::StopString(text) => (Ending::Stop, Some(Stop::Text(text.clone()))),
            FinishReason::Complete => (Ending::Stop, None),
            FinishReason::MaxTokens | FinishReason::ContextFull => (Ending::Length, None),
            FinishReason::Cancelled | FinishReason::Callback => (Ending::Cancelled, None),
        };
        let last = match stop {
            Some(Stop::Id(id)) if self.shown.contains(id) => {
                self.piece(vec![id], Vec::from_iter(finished.ending))
            }
            _ => LLMEngineOutput::default(),
        };
        let stop_reason = match (stop, &finished.finish) {
            (Some(Stop::Text(text)), _) => Some(StopReason::String(text)),
            (Some(Stop::Id(id)), FinishReason::StopId(_)) => Some(StopReason::Int(id.into())),
            _ => None,
        };
        let usage = self.usage(finished.timings.reused_tokens);
        LLMEngineOutput { finish_reason: Some(ending), stop_reason, ..last }.with_usage(usage)
    }

    fn usage(&self, reused: usize) -> CompletionUsage {
        let count = |tokens: usize| u32::try_from(tokens).unwrap_or(u32::MAX);
        let details =
            PromptTokensDetails { cached_tokens: Some(count(reused)), ..PromptTokensDetails::default() };
        CompletionUsage {
            prompt_tokens_details: Some(details),
            ..usage(count(self.prompt_tokens), count(self.sent))
        }
    }
}

enum Stop {
    Id(u32),
    Text(String),
}

/// The frontend knows the tokens' texts.
fn top(of_token: &TokenLogprob) -> Vec<TopLogprob> {
    let ranked = of_token.top.iter().zip(1..);
    let entry = |(&(id, logprob), rank): (&(u32, f32), u32)| TopLogprob {
        rank,
        token_id: id,
        token: None,
        logprob: logprob.into(),
        bytes: None,
    };
    ranked.map(entry).collect()
}
