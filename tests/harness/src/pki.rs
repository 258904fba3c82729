//! Keys and certificates of one control plane: written once, trusted by nobody else, gone with its folder.

use std::path::Path;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

/// The name in the certificate with which the API server calls aggregated ones (`--requestheader-allowed-names`).
pub(crate) const FRONT_PROXY: &str = "front-proxy-client";

/// Writes `ca.crt`, `apiserver.{crt,key}`, `front-proxy.{crt,key}` and the key pair that signs ServiceAccount
/// tokens (`service-account.{key,pub}`) into `dir`, and returns the CA certificate as PEM.
pub(crate) fn write(dir: &Path) -> Result<String> {
    let ca_key = key()?;
    let mut ca = CertificateParams::default();
    ca.distinguished_name.push(DnType::CommonName, "harness");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let ca_pem = ca.self_signed(&ca_key).context("sign the CA certificate")?.pem();
    let issuer = Issuer::new(ca, ca_key);
    save(dir, "ca.crt", &ca_pem)?;

    let names = ["127.0.0.1", "localhost", "kubernetes.default.svc"].map(str::to_owned);
    let mut serving = CertificateParams::new(names).context("name the API server's certificate")?;
    serving.distinguished_name.push(DnType::CommonName, "kube-apiserver");
    serving.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    leaf(dir, "apiserver", serving, &issuer)?;

    let mut proxy = CertificateParams::default();
    proxy.distinguished_name.push(DnType::CommonName, FRONT_PROXY);
    proxy.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    leaf(dir, "front-proxy", proxy, &issuer)?;

    let tokens = key()?;
    save(dir, "service-account.key", &tokens.serialize_pem())?;
    save(dir, "service-account.pub", &tokens.public_key_pem())?;
    Ok(ca_pem)
}

fn leaf(dir: &Path, name: &str, mut params: CertificateParams, issuer: &Issuer<'_, KeyPair>) -> Result<()> {
    let key = key()?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&key, issuer).with_context(|| format!("sign the certificate {name}"))?;
    save(dir, &format!("{name}.crt"), &certificate.pem())?;
    save(dir, &format!("{name}.key"), &key.serialize_pem())
}

fn key() -> Result<KeyPair> {
    KeyPair::generate().context("make a key pair")
}

fn save(dir: &Path, name: &str, text: &str) -> Result<()> {
    let path = dir.join(name);
    std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}
