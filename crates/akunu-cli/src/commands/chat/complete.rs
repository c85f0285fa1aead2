//! What Tab completes: commands, and the names of settings, models and files after them.

use std::path::Path;

use akunu_hub::KNOWN;

use super::settings;
use super::slash_commands::NAMES;
use crate::{environment, hub};

/// Where the completed part begins, and what may replace it.
pub fn complete(typed: &str) -> (usize, Vec<String>) {
    let Some((command, argument)) = typed.split_once(' ') else {
        let names = NAMES.iter().filter(|name| typed.starts_with('/') && name.starts_with(typed));
        return (0, names.map(|name| format!("{name} ")).collect());
    };
    let argument = argument.trim_start();
    let start = typed.len() - argument.len();
    match command {
        "/set" => match argument.split_once(' ') {
            None => {
                (start, settings::names().filter(|name| name.starts_with(argument)).map(spaced).collect())
            }
            Some((name, value)) => {
                let values = settings::values(name).iter().filter(|word| word.starts_with(value));
                (typed.len() - value.len(), values.map(ToString::to_string).collect())
            }
        },
        "/model" => {
            let known = KNOWN.iter().map(|known| known.name.to_string());
            let mut names: Vec<String> = known.chain(hub::cached_names()).collect();
            names.retain(|name| name.starts_with(argument));
            names.extend(files(argument, &|path| path.is_dir() || is_model(path)));
            names.sort();
            names.dedup();
            (start, names)
        }
        "/save" | "/load" => (start, files(argument, &|_| true)),
        _ => (typed.len(), Vec::new()),
    }
}

fn spaced(name: &str) -> String {
    format!("{name} ")
}

fn is_model(path: &Path) -> bool {
    path.extension().is_some_and(|suffix| suffix == "gguf" || suffix == "safetensors")
}

/// Paths that begin with what is typed; folders end in a slash. Hidden ones are shown if a dot is typed.
fn files(typed: &str, fits: &dyn Fn(&Path) -> bool) -> Vec<String> {
    let (folder, stem) = typed.split_at(typed.rfind('/').map_or(0, |slash| slash + 1));
    let place = if folder.is_empty() { ".".into() } else { environment::at_home(folder) };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let is_hidden = name.starts_with('.') && !stem.starts_with('.');
        let path = entry.path();
        if name.starts_with(stem) && !is_hidden && !name.contains(char::is_control) && fits(&path) {
            found.push(format!("{folder}{name}{}", if path.is_dir() { "/" } else { "" }));
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_settings_are_completed() {
        assert_eq!(
            complete("/s"),
            (0, ["/set ", "/system ", "/save ", "/stats "].map(String::from).to_vec())
        );
        assert_eq!(complete("/cl"), (0, vec!["/clear ".to_string()]));
        assert_eq!(complete("/set te"), (5, vec!["temp ".to_string()]));
        assert_eq!(complete("/set wrap o"), (10, vec!["on".to_string(), "off".to_string()]));
        assert_eq!(complete("/set temp d"), (10, vec!["default".to_string()]));
        for nothing in ["s", "hello /s", "", "/clear x", "/system y"] {
            assert_eq!(complete(nothing).1, [""; 0], "{nothing}");
        }
        let models = complete("/model qwen3:0").1;
        assert_eq!(models, ["qwen3:0.6b"]);
    }

    #[test]
    fn files_are_completed_with_their_folder() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["talk.json", "tall", ".hidden", "model.gguf", "e\u{1b}vil"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        std::fs::create_dir(dir.path().join("tales")).unwrap();
        let at = |name: &str| format!("{}/{name}", dir.path().display());
        let found = |command: &str, name: &str| complete(&format!("{command} {}", at(name))).1;
        assert_eq!(found("/save", "ta"), [at("tales/"), at("talk.json"), at("tall")]);
        assert_eq!(found("/load", "."), [at(".hidden")]);
        assert_eq!(found("/load", "e"), [""; 0]);
        assert_eq!(found("/model", ""), [at("model.gguf"), at("tales/")]);
        assert_eq!(found("/save", "no/such/"), [""; 0]);
    }
}
