//! Options for the format of generated text.

use std::path::{Path, PathBuf};

use akunu::{Constraints, ResponseFormat};
use clap::Args;

use crate::failure::Failure;

/// Maximum bytes of a file. What a grammar may have of that is said by its own limits.
const MAX_FILE: u64 = 16 << 20;

#[derive(Debug, Args)]
#[command(next_help_heading = "Format")]
#[group(multiple = false)]
pub struct FormatArgs {
    /// Only JSON that conforms to the JSON Schema in this file; {} is any JSON
    #[arg(long, value_name = "FILE")]
    json_schema: Option<PathBuf>,
    /// Only text of the grammar in this file, in llama.cpp's syntax (GBNF) or in Lark's
    #[arg(long, value_name = "FILE")]
    grammar: Option<PathBuf>,
    /// Only text that this regular expression matches as a whole
    #[arg(long, value_name = "REGEX", allow_hyphen_values = true)]
    regex: Option<String>,
}

impl FormatArgs {
    pub fn is_given(&self) -> bool {
        self.json_schema.is_some() || self.grammar.is_some() || self.regex.is_some()
    }

    /// The format that is asked for, with the contents of its file. A wrong one is found here, before a model is opened.
    pub fn read(&self) -> Result<Option<ResponseFormat>, Failure> {
        let format = self.contents()?;
        if let Some(format) = &format {
            check(Constraints::check(format, None))?;
        }
        Ok(format)
    }

    fn contents(&self) -> Result<Option<ResponseFormat>, Failure> {
        if let Some(path) = &self.json_schema {
            let refuse = |error| Failure::usage(format!("{} is not JSON: {error}", path.display()));
            let schema = serde_json::from_str(&text(path)?).map_err(refuse)?;
            return Ok(Some(ResponseFormat::Schema(schema)));
        }
        if let Some(path) = &self.grammar {
            return Ok(Some(ResponseFormat::from_grammar(&text(path)?)));
        }
        Ok(self.regex.as_ref().map(|regex| ResponseFormat::Regex(regex.clone())))
    }
}

/// What was found when a format was compiled. That it is wrong is an error of usage.
pub fn check<T>(compiled: Result<T, akunu::Error>) -> Result<T, Failure> {
    compiled.map_err(|error| match &error {
        akunu::Error::Grammar(reason) if reason.is_of_format() => Failure::usage(reason.to_string()),
        _ => error.into(),
    })
}

fn text(path: &Path) -> Result<String, Failure> {
    akunu_file::read_text(path, MAX_FILE).map_err(|error| Failure::io("read", path, &error))
}
