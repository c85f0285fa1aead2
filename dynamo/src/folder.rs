//! The files that Dynamo's frontend reads a model's vocabulary, chat template and end-of-text tokens from.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf, absolute};

use akunu::Model;
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};

/// Why there are no files for the frontend. Display includes the cause.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error(
        "the frontend needs the tokenizer.json of the model, which is in a GGUF file: {0}; give the folder of the \
         original model, or its name on the hub (--tokenizer)"
    )]
    Vocabulary(akunu_tokenizer::TokenizerError),
    #[error(
        "the model's file has no vocabulary: give the folder of the original model, or its name on the hub \
         (--tokenizer)"
    )]
    NoVocabulary,
    #[error(
        "{} is of another user, or has other files than this program writes: remove it, or set TMPDIR", path.display()
    )]
    Foreign { path: PathBuf },
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
}

/// A folder, or a name on the hub, for the model in `path`. `given`: what the user states. Workers of one model have to
/// state the same text: the frontend takes them for workers of different models otherwise.
pub fn find(given: Option<&str>, path: Option<&Path>, model: &Model) -> Result<String, FolderError> {
    let whole = |path: &Path| {
        let whole = absolute(path).map_err(|error| FolderError::Io { path: path.to_path_buf(), error });
        whole.map(|path| path.display().to_string())
    };
    match (given, path) {
        (Some(given), _) if Path::new(given).exists() => whole(Path::new(given)),
        (Some(given), _) => Ok(given.to_string()),
        (None, Some(path)) if model.metadata().is_none() => {
            // The parent of a file's name alone is empty.
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            whole(if path.is_dir() { path } else { parent.unwrap_or(Path::new(".")) })
        }
        (None, _) => whole(&write(model, &std::env::temp_dir())?),
    }
}

/// Writes the files of a model in a GGUF file into a folder within `within`, which is named by them and stays.
pub fn write(model: &Model, within: &Path) -> Result<PathBuf, FolderError> {
    let files = files(model)?;
    let mut digest = Sha256::new();
    files.iter().for_each(|(_, bytes)| digest.update(bytes));
    let name: String = digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let path = within.join(format!("akunu-dynamo-{name}"));
    let failed = |error| FolderError::Io { path: path.clone(), error };
    // Whole before it has its name, which another worker may give at the same time.
    let made = tempfile::Builder::new().prefix("akunu-dynamo-").tempdir_in(within).map_err(failed)?;
    for (name, bytes) in &files {
        let file = made.path().join(name);
        fs::write(&file, bytes).map_err(failed)?;
        // A frontend of another user may read it, whatever the umask.
        fs::set_permissions(&file, Permissions::from_mode(0o644)).map_err(failed)?;
    }
    fs::set_permissions(made.path(), Permissions::from_mode(0o755)).map_err(failed)?;
    if fs::rename(made.path(), &path).is_err() {
        let own = fs::metadata(made.path()).map_err(failed)?.uid();
        let is_own = fs::symlink_metadata(&path).map_err(failed)?.uid() == own;
        let is_same =
            |(name, bytes): &(&str, Vec<u8>)| fs::read(path.join(name)).is_ok_and(|there| there == *bytes);
        if !(is_own && files.iter().all(is_same)) {
            return Err(FolderError::Foreign { path });
        }
    }
    Ok(path)
}

fn files(model: &Model) -> Result<[(&'static str, Vec<u8>); 3], FolderError> {
    let metadata = model.metadata().ok_or(FolderError::NoVocabulary)?;
    let written = akunu_tokenizer::tokenizer_json(metadata).map_err(FolderError::Vocabulary)?;
    let tokenizer = model.tokenizer().map_err(|_| FolderError::NoVocabulary)?;
    let (config, special) = (model.config(), tokenizer.special());
    let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id));
    let template = metadata.str("tokenizer.chat_template").ok().flatten();
    let config_json = json!({
        "architectures": [config.architecture],
        "model_type": config.architecture,
        "max_position_embeddings": config.context_length,
        "vocab_size": config.vocab_size,
        "bos_token_id": special.bos,
        "eos_token_id": model.eos_ids(),
    });
    let tokenizer_config = json!({
        "bos_token": text(special.bos),
        "eos_token": text(special.eos),
        "chat_template": template,
        "model_max_length": config.context_length,
    });
    let bytes = |json: Json| json.to_string().into_bytes();
    Ok([
        ("tokenizer.json", written),
        ("config.json", bytes(config_json)),
        ("tokenizer_config.json", bytes(tokenizer_config)),
    ])
}
