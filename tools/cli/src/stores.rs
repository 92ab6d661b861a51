//! Where a backend stores things, as `check --stores` and the `backend.toml` of a project say it.

/// As text: `directories`, `names`, or a URI.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub enum Stores {
    Given(String),
    /// Each case has directories of its own.
    Directories,
    /// `scheme://NAME`, each another store.
    Names,
}

impl std::str::FromStr for Stores {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "directories" => Ok(Stores::Directories),
            "names" => Ok(Stores::Names),
            uri if uri.contains("://") => Ok(Stores::Given(uri.to_owned())),
            _ => Err(format!("{text:?} is not directories, names, or a URI")),
        }
    }
}

impl TryFrom<String> for Stores {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}
