//! `cargo xtask routers`: routers of PyPI before several `akunu serve`, a subscriber to the events of their caches, and the
//! manifests for Kubernetes.

use std::env;
use std::fs;

use anyhow::Result;

use crate::clients::{caller_model, python_command, python_with};
use crate::{cargo, root, run, skipped, target};

const SCRIPTS: [&str; 3] = ["events_test.py", "routers_test.py", "kubernetes_test.py"];

pub(crate) fn routers() -> Result<()> {
    let folder = root().join("xtask/routers");
    let python = match python_with(&folder.join("requirements.txt"), &target().join("routers/python")) {
        Ok(python) => python,
        Err(missing) => {
            skipped("routers", &missing);
            return Ok(());
        }
    };
    // Same arguments as for the tests, so that nothing is built again after these.
    run(&mut cargo(&["test", "--workspace", "--locked", "--no-run"]))?;
    let akunu = target().join("debug").join(format!("akunu{}", env::consts::EXE_SUFFIX));
    let logs = target().join("routers/logs");
    fs::create_dir_all(&logs)?;
    let caller = caller_model()?;
    for script in SCRIPTS {
        say!("routers: {script}");
        let mut test = python_command(&python);
        test.args(["-W", "ignore"]).arg(folder.join(script));
        test.env("AKUNU_CALLER", &caller).env("AKUNU_ROOT", root());
        test.env("AKUNU", &akunu).env("AKUNU_LOGS", &logs).env("NO_PROXY", "*").env("no_proxy", "*");
        run(test.env_remove("AKUNU_API_KEY"))?;
    }
    Ok(())
}
