//! `cargo xtask figures`: charts, tables and pictures of README.md and docs, from `docs/measurements/data` and from the
//! program.

mod chart;
mod models;
mod terminal;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::{built_akunu, root};

const TERMINAL: &str = "docs/pictures/terminal.svg";
const CHART: &str = "docs/pictures/speed.svg";
const SPEEDS: &str = "docs/measurements/data/speed.csv";
const MODELS: &str = "docs/measurements/data/models.json";

/// Without an argument what follows from the data; `terminal` records the program, `models` measures the data of models.
pub(crate) fn figures(args: &[String]) -> Result<()> {
    match args.first().map(String::as_str) {
        None => {}
        Some("terminal") => fs::write(root().join(TERMINAL), terminal::record(&akunu()?)?)?,
        Some("models") => {
            let old = fs::read_to_string(root().join(MODELS))?;
            fs::write(root().join(MODELS), models::measured(&old, &akunu()?)?)?;
        }
        Some(other) => bail!("there are no figures {other}: terminal, models, or nothing"),
    }
    for (name, text) in from_data(&root())? {
        fs::write(root().join(name), text)?;
    }
    Ok(())
}

/// The program that `AKUNU` names, or one that is built.
fn akunu() -> Result<PathBuf> {
    std::env::var_os("AKUNU").map_or_else(built_akunu, |program| Ok(program.into()))
}

/// The files that follow from the data.
fn from_data(root: &Path) -> Result<Vec<(&'static str, String)>> {
    let read = |name: &str| fs::read_to_string(root.join(name)).with_context(|| name.to_string());
    let speeds = chart::parse(&read(SPEEDS)?)?;
    let models = models::parse(&read(MODELS)?)?;
    let mut readme = inserted(&read("README.md")?, "speed", &chart::table(&speeds)?)?;
    readme = inserted(&readme, "models", &models::table(&models, false))?;
    let page = inserted(&read("docs/models.md")?, "models", &models::table(&models, true))?;
    Ok(vec![(CHART, chart::svg(&speeds)?), ("README.md", readme), ("docs/models.md", page)])
}

/// A page with a text between its marks.
fn inserted(page: &str, name: &str, text: &str) -> Result<String> {
    let (begin, end) = (format!("<!-- {name}: cargo xtask figures -->\n"), format!("<!-- end of {name} -->"));
    let (before, rest) = page.split_once(&begin).with_context(|| format!("no page has the mark {begin}"))?;
    let (_, after) = rest.split_once(&end).with_context(|| format!("no page has the mark {end}"))?;
    Ok([before, &begin, text, &end, after].concat())
}

/// Text within an element of SVG.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_and_tables_are_those_of_the_data() -> Result<()> {
        for (name, text) in from_data(&root())? {
            let there = fs::read_to_string(root().join(name))?;
            assert!(there == text, "{name} is out of date: run `cargo xtask figures`");
        }
        Ok(())
    }
}
