//! `cargo xtask models`: search the models of the protocols for an order of events that undoes an acknowledged change.

use std::process::Command;

use anyhow::Result;

use crate::place::Place;
use crate::step;

#[derive(clap::Args)]
pub struct ModelsOptions {
    /// One JSON object a line on standard output, for machines
    #[arg(long)]
    json: bool,
    /// Also the steps of each sequence that was found
    #[arg(long)]
    steps: bool,
    /// Only this model: local-fs, memkv, redis, cluster, s3, mooncake, hold
    #[arg(long, value_name = "MODEL")]
    only: Option<String>,
}

pub fn run(place: &Place, options: &ModelsOptions) -> Result<()> {
    let mut models = Command::new("cargo");
    models.current_dir(place.root.join("tests/models")).args([
        "run",
        "--release",
        "--quiet",
        "--locked",
        "--target-dir",
    ]);
    models.arg(place.target.join("models")).arg("--");
    models.args(options.json.then_some("--json")).args(options.steps.then_some("--steps"));
    if let Some(only) = &options.only {
        models.args(["--only", only]);
    }
    step::run_shown("models of the protocols", &mut models)
}
