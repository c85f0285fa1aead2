//! `akunu tokenize`: text in, token ids out.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use akunu_tokenizer::{EncodeOptions, Tokenizer};
use clap::Args;
use serde::Serialize;

use crate::failure::Failure;
use crate::hub;
use crate::ids;
use crate::output::Output;
use crate::prompt;

/// Converts text to token ids
///
/// The text is an argument, a file (-f) or stdin. Begin- and end-of-text tokens are added as the vocabulary states.
#[derive(Debug, Args)]
#[command(override_usage = "akunu tokenize [OPTIONS] [MODEL] [TEXT]")]
pub struct TokenizeArgs {
    /// The model [default: the embedded model]
    #[arg(value_name = "MODEL")]
    first: Option<OsString>,
    /// The text; if it is the only argument, the embedded model is used [default: stdin]
    #[arg(value_name = "TEXT")]
    second: Option<OsString>,
    /// The model, as an option
    #[arg(short, long, value_name = "MODEL", conflicts_with = "second")]
    model: Option<OsString>,
    /// The text, even if it could be a file name or an option
    #[arg(short = 'p', long = "prompt", value_name = "TEXT", group = "source", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// File with the text (- is stdin), used unchanged
    #[arg(short, long, group = "source")]
    file: Option<PathBuf>,
    /// Adds no begin- and end-of-text tokens
    #[arg(long)]
    no_special: bool,
    /// Treats <|im_end|> and similar text as plain text, not as special tokens
    #[arg(long)]
    no_parse_special: bool,
    /// Prints a line for each token: id and text
    #[arg(long, conflicts_with = "json")]
    list: bool,
    #[arg(long, help = "Prints JSON")]
    json: bool,
}

#[derive(Debug, Serialize)]
struct TokenizeReport<'a> {
    ids: &'a [u32],
    /// The text of each id alone; bytes that are no whole character show as U+FFFD.
    pieces: Vec<String>,
}

pub fn run(args: TokenizeArgs, out: &mut Output) -> Result<(), Failure> {
    let (path, text) = resolve(&args)?;
    let tokenizer = super::open_tokenizer(path.as_deref())?;
    let options = EncodeOptions { add_special: !args.no_special, parse_special: !args.no_parse_special };
    let ids = tokenizer.encode(&text, options).map_err(akunu::Error::from)?;
    if args.json {
        return out.json(&TokenizeReport {
            ids: &ids,
            pieces: ids.iter().map(|&id| piece(&*tokenizer, id)).collect(),
        });
    }
    if args.list {
        for &id in &ids {
            out.line(&format!("{id:>7}  {:?}", piece(&*tokenizer, id)))?;
        }
        return Ok(());
    }
    out.line(&ids::listed(&ids))
}

/// The text that a token adds; for a control token, which adds none, its name.
fn piece(tokenizer: &dyn Tokenizer, id: u32) -> String {
    match tokenizer.token_bytes(id) {
        Some(bytes) if !bytes.is_empty() => String::from_utf8_lossy(bytes).into_owned(),
        _ => tokenizer.token_text(id).unwrap_or_default().to_string(),
    }
}

fn resolve(args: &TokenizeArgs) -> Result<(Option<PathBuf>, String), Failure> {
    let explicit = match (&args.prompt, &args.file) {
        (Some(text), _) => Some(text.clone()),
        (None, Some(file)) => Some(prompt::read_text(file)?),
        (None, None) => None,
    };
    let as_text = |text: &OsString| {
        text.to_str().map(str::to_string).ok_or_else(|| Failure::usage("the text is not UTF-8"))
    };
    // With -m, the first argument is the text.
    let (first, second) = match &args.model {
        Some(model) => (Some(model), args.first.as_ref()),
        None => (args.first.as_ref(), args.second.as_ref()),
    };
    match (explicit, first, second) {
        (Some(_), _, Some(_)) => Err(Failure::usage("two texts were given")),
        (Some(text), model, None) => Ok((model.map(PathBuf::from), text)),
        (None, Some(model), Some(text)) => Ok((Some(model.into()), as_text(text)?)),
        (None, Some(only), None) => {
            let path = Path::new(only);
            if args.model.is_some()
                || path.exists()
                || hub::is_reference(path)
                || prompt::looks_like_a_model(path)
            {
                Ok((Some(path.to_path_buf()), from_stdin()?))
            } else {
                Ok((None, as_text(only)?))
            }
        }
        (None, None, _) => Ok((None, from_stdin()?)),
    }
}

fn from_stdin() -> Result<String, Failure> {
    prompt::piped_stdin()?.ok_or_else(|| {
        Failure::usage("no text was given")
            .hint("akunu tokenize [MODEL] \"some text\", -f FILE, or pipe it in")
    })
}
