//! `akunu detokenize`: token ids in, text out.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use crate::failure::Failure;
use crate::ids;
use crate::output::Output;
use crate::prompt;

/// Converts token ids to text
///
/// Ids are given after the model or on stdin, separated by commas or spaces.
#[derive(Debug, Args)]
#[command(override_usage = "akunu detokenize [OPTIONS] [MODEL] [IDS]...")]
pub struct DetokenizeArgs {
    /// Token ids: 1,2,3 or 1 2 3; optionally preceded by the model [default: the embedded model]
    #[arg(value_name = "IDS")]
    args: Vec<OsString>,
    /// The model, as an option
    #[arg(short, long, value_name = "MODEL")]
    model: Option<PathBuf>,
    #[arg(long, help = "Prints JSON")]
    json: bool,
}

pub fn run(args: &DetokenizeArgs, out: &mut Output) -> Result<(), Failure> {
    let (path, words) = match args.args.split_first() {
        _ if args.model.is_some() => (args.model.clone(), &args.args[..]),
        Some((first, rest)) if is_model(first) => (Some(PathBuf::from(first)), rest),
        _ => (None, &args.args[..]),
    };
    let ids = match words {
        [] => ids::from_text(&prompt::piped_stdin()?.ok_or_else(|| {
            Failure::usage("no token ids were given").hint("akunu detokenize [MODEL] 1,2,3, or pipe them in")
        })?)?,
        words => {
            let text = words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
            ids::parse(&text).map_err(Failure::usage)?.0
        }
    };
    let tokenizer = super::open_tokenizer(path.as_deref())?;
    let vocab = tokenizer.vocab_size();
    if let Some(index) = ids.iter().position(|&id| id as usize >= vocab) {
        let id = ids[index];
        return Err(akunu::Error::TokenOutsideVocabulary { id, index, vocab, place: "ids" }.into());
    }
    let text = tokenizer.decode(&ids);
    if args.json { out.json(&json!({ "text": text })) } else { out.generated(&(text + "\n")) }
}

fn is_model(word: &OsString) -> bool {
    let path = Path::new(word);
    path.exists() || word.to_str().is_none_or(|word| ids::parse(word).is_err())
}
