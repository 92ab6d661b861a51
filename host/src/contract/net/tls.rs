//! TLS, made by the host: a component says that it wants it, the operator says whom to trust.

use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, Error as TlsError, RootCertStore};

use super::socket::{Socket, waited};
use crate::config;
use crate::error::{Error, ErrorKind};

/// Whom a store's connections trust, and as whom they come. Read when it is first needed.
#[derive(Default)]
pub(crate) struct Tls {
    files: config::Tls,
    read: OnceLock<Arc<ClientConfig>>,
}

impl Tls {
    pub(crate) fn new(files: config::Tls) -> Self {
        Tls { files, read: OnceLock::new() }
    }

    /// Speak TLS on a new connection to the server that the component named.
    pub(super) async fn handshake(&self, host: &str, socket: Socket) -> Result<TlsStream<Socket>, Error> {
        let name = match host.parse::<IpAddr>() {
            Ok(address) => ServerName::IpAddress(address.into()),
            Err(_) => ServerName::try_from(host.to_owned())
                .map_err(|_| Error::invalid(format!("{host} is no name that a certificate could be for")))?,
        };
        let shaken = TlsConnector::from(self.config()?).connect(name, socket).await;
        shaken.map_err(|error| self.explain(host, &error))
    }

    fn config(&self) -> Result<Arc<ClientConfig>, Error> {
        if let Some(config) = self.read.get() {
            return Ok(config.clone());
        }
        // What fails is tried again at the next connection: the operator may have mended it.
        let config = Arc::new(self.client_config()?);
        Ok(self.read.get_or_init(|| config).clone())
    }

    fn explain(&self, host: &str, error: &std::io::Error) -> Error {
        use rustls::CertificateError as Wrong;
        let Some(TlsError::InvalidCertificate(wrong)) = tls_error(error) else { return failed(error) };
        let trusted = match &self.files.ca {
            Some(path) => format!("the certificates in {}", path.display()),
            None => "the system's certificates; for a CA of your own set tls.ca in the config".to_owned(),
        };
        let message = match wrong {
            Wrong::NotValidForName | Wrong::NotValidForNameContext { .. } => {
                format!("the server's certificate is not for {host}")
            }
            Wrong::Expired | Wrong::ExpiredContext { .. } => "the server's certificate has expired".to_owned(),
            other => format!("the server's certificate is not trusted ({other:?}): it was checked with {trusted}"),
        };
        Error::new(ErrorKind::Unavailable, message)
    }
}

/// What a failure of a stream means. The server's verdict on the client's certificate may come with the first answer.
pub(super) fn failed(error: &std::io::Error) -> Error {
    use rustls::AlertDescription as Alert;
    let message = match tls_error(error) {
        None => error.to_string(),
        Some(TlsError::InvalidMessage(_)) => "what answers there does not speak TLS".to_owned(),
        Some(TlsError::AlertReceived(Alert::CertificateRequired | Alert::HandshakeFailure)) => {
            "the server wants a client's certificate: set tls.certificate and tls.key in the config".to_owned()
        }
        Some(TlsError::AlertReceived(
            alert @ (Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::DecryptError
            | Alert::UnknownCA),
        )) => format!("the server refused the client's certificate, tls.certificate ({alert:?})"),
        Some(other) => format!("TLS failed: {other}"),
    };
    let failed = Error::new(ErrorKind::Unavailable, message);
    match waited(error) {
        Some(patience) => failed.after_waiting(patience),
        None => failed,
    }
}

fn tls_error(error: &std::io::Error) -> Option<&TlsError> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

impl Tls {
    fn client_config(&self) -> Result<ClientConfig, Error> {
        let config::Tls { certificate, key, .. } = &self.files;
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::new(ErrorKind::Other, format!("TLS cannot be set up: {error}")))?
            .with_root_certificates(self.roots()?);
        match (certificate, key) {
            (Some(certificate), Some(key)) => {
                let chain = certificates("tls.certificate", certificate)?;
                let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable("tls.key", key, error))?;
                builder.with_client_auth_cert(chain, secret).map_err(|error| unreadable("tls.key", key, error))
            }
            _ => Ok(builder.with_no_client_auth()),
        }
    }

    fn roots(&self) -> Result<RootCertStore, Error> {
        let mut roots = RootCertStore::empty();
        match &self.files.ca {
            Some(path) => {
                for certificate in certificates("tls.ca", path)? {
                    roots.add(certificate).map_err(|error| unreadable("tls.ca", path, error))?;
                }
            }
            None => {
                // Systems carry old certificates that are not understood; the rest serves.
                roots.add_parsable_certificates(kv_platform::roots::roots());
                if roots.is_empty() {
                    let message = "the system has no CA certificates: install them, or set tls.ca in the config";
                    return Err(Error::invalid(message));
                }
            }
        }
        Ok(roots)
    }
}

fn certificates(key: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let read = CertificateDer::pem_file_iter(path).and_then(|found| found.collect::<Result<Vec<_>, _>>());
    let certificates = read.map_err(|error| unreadable(key, path, error))?;
    if certificates.is_empty() {
        return Err(unreadable(key, path, "it holds no certificate in PEM form"));
    }
    Ok(certificates)
}

fn unreadable(key: &str, path: &Path, error: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{key} {}: {error}", path.display()))
}
