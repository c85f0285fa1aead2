//! TLS certificates.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::error::ServeError;

/// Maximum bytes of each file.
const MAX_FILE: u64 = 1 << 20;

/// PEM files: a certificate chain, and the private key of its first certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

pub(crate) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, ServeError> {
    let failed = |path: &Path, error: &dyn std::fmt::Display| ServeError::Tls {
        path: path.display().to_string(),
        reason: error.to_string(),
    };
    let read = |path: &Path| akunu_file::read(path, MAX_FILE).map_err(|error| failed(path, &error));
    let chain = CertificateDer::pem_slice_iter(&read(&files.certificate)?).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|error| failed(&files.certificate, &error))?;
    let key = PrivateKeyDer::from_pem_slice(&read(&files.key)?);
    let key = key.map_err(|error| failed(&files.key, &error))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(&files.certificate, &error))?;
    let mut config = config
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| failed(&files.certificate, &error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
