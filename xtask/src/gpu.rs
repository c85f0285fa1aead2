//! Bundles what is tested on a machine with a GPU and without Rust: akunu, the tests of allocations, sampling and chain
//! ends, the small test models and a script, in one folder and one archive.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::{built_akunu, built_example, built_test, root, run};

const RUNNER: &str = "xtask/gpu/run.sh";
/// Folders of models, and single files, under testdata.
const MODELS: [&str; 4] = ["encoders", "gguf", "mlx", "models"];

pub(crate) fn bundle() -> Result<()> {
    let akunu = built_akunu()?;
    let place = akunu.parent().and_then(Path::parent).context("the binary has no parent folder")?.join("gpu");
    let folder = place.join("akunu-gpu");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(folder.join("models"))?;
    let programs = [
        (akunu, "akunu"),
        (built_test("akunu", "zero_alloc")?, "zero_alloc"),
        (built_test("akunu", "engine")?, "engine"),
        (built_example("akunu", "chain_end")?, "chain_end"),
    ];
    for (program, name) in programs {
        // Half of the file is debug information.
        run(Command::new("strip").arg("-o").arg(folder.join(name)).arg(program))?;
    }
    fs::copy(root().join(RUNNER), folder.join("run.sh"))?;
    for group in MODELS {
        for entry in fs::read_dir(root().join("testdata").join(group))? {
            copy_model(&entry?.path(), &folder.join("models"))?;
        }
    }
    let file = place.join("akunu-gpu.tar.gz");
    run(Command::new("tar").arg("czf").arg(&file).arg("-C").arg(&place).arg("akunu-gpu"))?;
    say!("{}\n{}: on a machine with a GPU, run akunu-gpu/run.sh", folder.display(), file.display());
    Ok(())
}

/// Copies a GGUF file, or the two files of a model folder; nothing for other paths.
fn copy_model(from: &Path, models: &Path) -> Result<()> {
    let name = from.file_name().context("a model path has no file name")?;
    if from.extension().is_some_and(|extension| extension == "gguf") {
        fs::copy(from, models.join(name))?;
    }
    let parts: Vec<PathBuf> = ["config.json", "model.safetensors"].map(|part| from.join(part)).into();
    if parts.iter().all(|part| part.is_file()) {
        fs::create_dir(models.join(name))?;
        for part in parts {
            fs::copy(&part, models.join(name).join(part.file_name().unwrap_or_default()))?;
        }
    }
    Ok(())
}
