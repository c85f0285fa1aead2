//! The only place where this program reads environment variables. All other code takes options.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use akunu::BackendOptions;
use akunu_hub::Settings;
use clap::builder::BoolishValueParser;
use clap::{Arg, ArgAction};

/// The value of a variable, unless it is empty.
fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// `AKUNU_ISA`, `AKUNU_CUDA`, `AKUNU_METAL`, `AKUNU_CUDA_PATH`, `AKUNU_CACHE`: options of the devices.
pub fn backends() -> BackendOptions {
    BackendOptions::from_variables(|name| env::var_os(name))
}

/// `HF_TOKEN`, `HF_ENDPOINT`, `HF_HOME` and the other variables of Hugging Face tools.
pub fn hub() -> akunu_hub::Result<Settings> {
    Settings::from_variables(|name| variable(name)?.into_string().ok())
}

/// `AKUNU_API_KEY`: a server's API key, for `serve` and for clients.
pub fn api_key() -> Option<String> {
    env::var("AKUNU_API_KEY").ok()
}

/// `AKUNU_WORKER_SECRET`: what the processes that share out a model know.
pub fn worker_secret() -> Option<Vec<u8>> {
    variable("AKUNU_WORKER_SECRET").map(OsString::into_encoded_bytes)
}

/// Lets an option of `serve` be read from the environment as well: `--max-memory` from `AKUNU_MAX_MEMORY`. Flags take
/// words such as true and off. Lists whose values contain no commas take several.
pub fn option_of_server(arg: Arg) -> Arg {
    let Some(name) = arg.get_long().map(variable_of) else { return arg };
    if variable(&name).is_none() || matches!(arg.get_action(), ArgAction::Help | ArgAction::Version) {
        return arg;
    }
    let arg = match arg.get_action() {
        ArgAction::SetTrue => arg.value_parser(BoolishValueParser::new()),
        ArgAction::Append if LISTS.contains(&name.as_str()) => arg.value_delimiter(','),
        _ => arg,
    };
    arg.env(name).hide_env(true)
}

/// The variable that an option of `serve` was read from, as in `--port <PORT>`.
pub fn source_of(option: &str) -> Option<String> {
    let name = option.strip_prefix("--")?.split([' ', '=']).next()?;
    let is_given = |word: OsString| word.to_str().is_some_and(|word| word.starts_with(&format!("--{name}")));
    let is_read = env::args_os().any(|word| word == "serve") && !env::args_os().any(is_given);
    let variable_name = variable_of(name);
    (is_read && variable(&variable_name).is_some()).then_some(variable_name)
}

/// Variables with lists.
const LISTS: [&str; 3] = ["AKUNU_ALIAS", "AKUNU_CORS", "AKUNU_ALLOW_HOST"];

fn variable_of(option: &str) -> String {
    format!("AKUNU_{}", option.to_ascii_uppercase().replace('-', "_"))
}

/// `COLUMNS`: the width of tables.
pub fn columns() -> Option<usize> {
    env::var("COLUMNS").ok()?.parse().ok().filter(|&columns| columns > 0)
}

/// `LC_ALL`, `LC_CTYPE`, `LANG`: whether the first of these that is set names UTF-8. Consoles of Windows show it always.
pub fn is_utf8() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(variable).unwrap_or_default();
    let locale = locale.to_string_lossy().to_ascii_lowercase();
    cfg!(windows) || locale.contains("utf-8") || locale.contains("utf8")
}

/// Whether `NO_COLOR` and `TERM` allow colours and other styles of text.
pub fn allows_colours() -> bool {
    variable("NO_COLOR").is_none() && variable("TERM").is_none_or(|term| term != "dumb")
}

/// Whether the terminal is one that the line editor supports.
#[cfg(unix)]
pub fn has_line_editor() -> bool {
    let without = ["dumb", "cons25", "emacs"];
    variable("TERM").is_none_or(|term| !without.iter().any(|name| term.eq_ignore_ascii_case(name)))
}

/// A path, in which `~/` is the home folder.
pub fn at_home(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), variable("HOME")) {
        (Some(rest), Some(home)) => PathBuf::from(home).join(rest),
        _ => PathBuf::from(path),
    }
}

/// The folder for state files, as specified by the XDG base directories.
pub fn state_folder() -> Option<PathBuf> {
    let folder = |name: &str| variable(name).map(PathBuf::from);
    let state = folder("XDG_STATE_HOME").filter(|path| path.is_absolute());
    let local =
        || folder("HOME").map(|home| home.join(".local").join("state")).or_else(|| folder("LOCALAPPDATA"));
    state.or_else(local)
}
