//! Whose certificates the system trusts.

use rustls_pki_types::CertificateDer;

use crate::way;

/// The certificates of authorities that the system trusts, or those that `SSL_CERT_FILE` names. What cannot be read is left out.
///
/// Linux: also those of `SSL_CERT_DIR` and of folders. Portable: one file of the system's, and `keychain` is lacking.
pub fn roots() -> Vec<CertificateDer<'static>> {
    way::roots::roots()
}
