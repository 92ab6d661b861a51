//! Certificates for tests of TLS, made anew in each process: a CA that the tests' config trusts, and what it signed.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};

/// A certificate and its private key, as files.
pub struct Certificate {
    pub chain: PathBuf,
    pub key: PathBuf,
}

pub struct Certificates {
    /// The CA's certificate.
    pub ca: PathBuf,
    /// For 127.0.0.1.
    pub server: Certificate,
    /// For another host.
    pub elsewhere: Certificate,
    /// For 127.0.0.1, and over since 1990.
    pub expired: Certificate,
    /// For 127.0.0.1, signed by a CA that nobody trusts.
    pub stranger: Certificate,
}

/// The certificates of this process.
pub fn certificates() -> &'static Certificates {
    static MADE: LazyLock<Certificates> = LazyLock::new(|| {
        let folder = crate::root().join(format!("target/test-consumers/tls-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the target folder can be written to");
        let write = |name: &str, text: String| {
            let path = folder.join(name);
            std::fs::write(&path, text).expect("the target folder can be written to");
            path
        };
        let (ours, strange) = (authority("the tests' CA"), authority("a CA that nobody trusts"));
        let signed = |name: &str, host: &str, ca: &(Issuer<'static, KeyPair>, String), last_year: i32| {
            let mut params = CertificateParams::new([host.to_owned()]).expect("a host");
            params.not_after = rcgen::date_time_ymd(last_year, 12, 31);
            let key = KeyPair::generate().expect("a key");
            let certificate = params.signed_by(&key, &ca.0).expect("a certificate");
            Certificate {
                chain: write(&format!("{name}.pem"), certificate.pem()),
                key: write(&format!("{name}.key"), key.serialize_pem()),
            }
        };
        Certificates {
            server: signed("server", "127.0.0.1", &ours, 4000),
            elsewhere: signed("elsewhere", "cache.example", &ours, 4000),
            expired: signed("expired", "127.0.0.1", &ours, 1990),
            stranger: signed("stranger", "127.0.0.1", &strange, 4000),
            ca: write("ca.pem", ours.1),
        }
    });
    &MADE
}

/// A CA, and its certificate in PEM form.
fn authority(name: &str) -> (Issuer<'static, KeyPair>, String) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("a certificate");
    (Issuer::new(params, key), certificate.pem())
}

/// The config that trusts a CA, and comes with a client's certificate where one is given.
pub fn config(ca: Option<&Path>, client: Option<&Certificate>) -> String {
    let mut text = "[backend.redis]\n".to_owned();
    if let Some(ca) = ca {
        text += &format!("tls.ca = '{}'\n", ca.display());
    }
    if let Some(Certificate { chain, key }) = client {
        text += &format!("tls.certificate = '{}'\ntls.key = '{}'\n", chain.display(), key.display());
    }
    text
}
