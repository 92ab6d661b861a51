//! As OpenSSL finds them.

use rustls_pki_types::CertificateDer;

pub fn roots() -> Vec<CertificateDer<'static>> {
    rustls_native_certs::load_native_certs().certs
}
