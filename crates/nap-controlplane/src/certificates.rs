//! Certificates of one control plane: authority, server and clients.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};

/// A certificate with its key, as PEM.
pub(crate) struct Pem {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// The certificate authority of one control plane.
pub(crate) struct Authority {
    pub(crate) pem: Pem,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Result<Self, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name("nap-test-authority", None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let key = KeyPair::generate()?;
        let pem = Pem { certificate: params.self_signed(&key)?.pem(), key: key.serialize_pem() };
        Ok(Self { pem, issuer: Issuer::new(params, key) })
    }

    /// The server's certificate, valid for loopback.
    pub(crate) fn server(&self) -> Result<Pem, rcgen::Error> {
        let mut params =
            CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()])?;
        params.distinguished_name = name("kube-apiserver", None);
        self.sign(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A client's certificate. Kubernetes reads the common name as user and the organization as
    /// group.
    pub(crate) fn client(&self, user: &str, group: Option<&str>) -> Result<Pem, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name(user, group);
        self.sign(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        purpose: ExtendedKeyUsagePurpose,
    ) -> Result<Pem, rcgen::Error> {
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate()?;
        Ok(Pem {
            certificate: params.signed_by(&key, &self.issuer)?.pem(),
            key: key.serialize_pem(),
        })
    }
}

/// Signing key of service account tokens: private and public key, as PEM.
pub(crate) fn signing_key() -> Result<(String, String), rcgen::Error> {
    let key = KeyPair::generate()?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}

fn name(user: &str, group: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, user);
    if let Some(group) = group {
        name.push(DnType::OrganizationName, group);
    }
    name
}
