//! The file that the system's own TLS library has.

use std::ffi::OsString;
use std::path::Path;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

/// macOS, Debian and its like, Fedora and its like, FreeBSD.
const FILES: &[&str] = &[
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/usr/local/share/certs/ca-root-nss.crt",
];

pub fn roots() -> Vec<CertificateDer<'static>> {
    let named = std::env::var_os("SSL_CERT_FILE");
    let own = || FILES.iter().find(|path| Path::new(path).exists()).map(OsString::from);
    let Some(file) = named.or_else(own) else { return Vec::new() };
    CertificateDer::pem_file_iter(file).into_iter().flatten().flatten().collect()
}
