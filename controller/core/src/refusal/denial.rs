//! Requests that contradict themselves, the policy, or what is known of the machine.

use std::net::IpAddr;
use std::time::Duration;

use kubelet_attestation::csr::envelope::MAX_REQUEST_LEN;
use kubelet_attestation::csr::subject::InvalidSubject;
use kubelet_attestation::names::{Audience, NodeName, Provider, ProviderId};
use x509_cert::der::asn1::ObjectIdentifier;

use super::EvidenceDenial;
use crate::identifiers::{CertificateUid, KeyDigest, NodeNames, ServingName, TokenId};

crate::reasons! {
    /// Why a request is denied: one reason a check, in the order of the checks.
    #[derive(Clone, PartialEq, Eq)]
    pub Denial {
        /// `spec.request` has more bytes than are read.
        #[error("spec.request has {0} bytes, and at most {MAX_REQUEST_LEN} are read")]
        RequestTooLarge(usize) => "the request is too large",
        /// The requester's attributes are larger than the API server makes them for a node or a
        /// bootstrap token.
        #[error("spec.{0} is larger than a node's or a bootstrap token's")]
        RequesterTooLarge(&'static str) => "the requester's attributes are too large",

        /// There is no PEM block.
        #[error("spec.request has no PEM block")]
        NoPemBlock => "the request has no PEM block",
        /// The request does not begin with a `CERTIFICATE REQUEST` block.
        #[error("spec.request does not begin with a CERTIFICATE REQUEST block")]
        NotARequestFirst => "the request does not begin with a CERTIFICATE REQUEST block",
        /// There are two `CERTIFICATE REQUEST` blocks, so that two readers could see two requests.
        #[error("spec.request has two CERTIFICATE REQUEST blocks")]
        SecondRequest => "the request has two CERTIFICATE REQUEST blocks",
        /// The provider or the evidence stands there twice.
        #[error("spec.request has a block twice")]
        DuplicateBlock => "the request has a block twice",
        /// A block that does not belong in a request.
        #[error("spec.request has an unknown block")]
        UnknownBlock => "the request has an unknown block",
        /// Evidence without a provider before it.
        #[error("spec.request has evidence without a provider before it")]
        EvidenceWithoutProvider => "the request has evidence without a provider",
        /// Text between or after the blocks.
        #[error("spec.request has text outside its blocks")]
        TextOutsideBlocks => "the request has text outside its blocks",
        /// A block is not in the one accepted encoding: headers, line lengths, line ends, base64.
        #[error("spec.request is not in the strict encoding of PEM")]
        NotStrictPem => "the request is not in the strict encoding of PEM",
        /// The provider block holds something else.
        #[error("the provider block holds no provider's name")]
        ProviderMalformed => "the provider block holds no provider's name",
        /// There is more evidence than is read.
        #[error("the evidence has too many bytes")]
        EvidenceTooLarge => "the evidence is too large",
        /// The certification request is not DER, has another encoding, or bytes after its end.
        #[error("the certification request is not in DER: {0}")]
        NotStrictDer(String) => "the certification request is not in DER",
        /// The certification request has an attribute other than requested extensions.
        #[error("the certification request has an attribute that is not accepted")]
        UnknownAttribute => "the certification request has an attribute that is not accepted",
        /// The certification request lists extensions twice.
        #[error("the certification request has two lists of extensions")]
        DuplicateAttribute => "the certification request has two lists of extensions",
        /// The certification request has an extension twice.
        #[error("the certification request has an extension twice")]
        DuplicateExtension => "the certification request has an extension twice",
        /// The key is not an ECDSA key on the named curve P-256.
        #[error("the key's algorithm is {0}, and only ECDSA on the named curve P-256 is accepted")]
        KeyNotAccepted(ObjectIdentifier) => "the key is not an ECDSA key on the named curve P-256",
        /// The key is no point of its curve, or not in uncompressed form.
        #[error("the key is no uncompressed point of P-256")]
        KeyNotOnCurve => "the key is no uncompressed point of P-256",
        /// The request is not signed with ECDSA and SHA-256.
        #[error("the certification request is not signed with ECDSA and SHA-256")]
        SignatureAlgorithmNotAccepted => "the certification request is not signed with ECDSA and SHA-256",
        /// The request is not signed with its own key.
        #[error("the certification request's signature does not verify with its own key")]
        SelfSignatureInvalid => "the certification request's signature is not its own key's",

        /// The organization is not exactly `system:nodes`.
        #[error("{}", InvalidSubject::Organization)]
        SubjectOrganization => "the subject's organization is not exactly system:nodes",
        /// The common name does not begin with `system:node:`.
        #[error("{}", InvalidSubject::CommonNamePrefix)]
        SubjectCommonName => "the subject's common name does not begin with system:node:",
        /// The common name ends in no node's name.
        #[error("{}", InvalidSubject::NodeName)]
        SubjectNodeName => "the subject's common name does not end in a node name",
        /// The subject has another order, another type of string, or several values in one part.
        #[error("{}", InvalidSubject::NotCanonical)]
        SubjectNotCanonical => "the subject is not in the one form that is accepted",
        /// The subject has an attribute beside organization and common name.
        #[error("{}", InvalidSubject::ExtraAttribute)]
        SubjectExtraAttribute => "the subject has an attribute beside organization and common name",
        /// `spec.usages` is not exactly digital signature and client auth.
        #[error("spec.usages is not exactly digital signature and client auth")]
        UsagesNotExact => "the usages are not exactly digital signature and client auth",
        /// A subject alternative name is asked for, of whatever kind. A client certificate has
        /// none.
        #[error("a subject alternative name of kind {0} is asked for")]
        SubjectAltNameRequested(&'static str) => "subject alternative names are not allowed",
        /// Basic constraints are asked for: to be a CA, or not to be one.
        #[error("basic constraints are asked for, {}", if *ca { "of a CA" } else { "though not of a CA" })]
        BasicConstraintsRequested {
            /// Whether to be a CA.
            ca: bool,
        } => "basic constraints are not accepted",
        /// Key usages are asked for inside the request, where they could differ from `spec.usages`.
        #[error("key usages are asked for inside the certification request")]
        UsageExtensionRequested => "usages are accepted in spec.usages only",
        /// An extension is asked for as critical.
        #[error("the critical extension {0} is asked for")]
        CriticalExtension(ObjectIdentifier) => "a critical extension is not accepted",
        /// An extension is asked for that is not known.
        #[error("the extension {0} is asked for")]
        UnknownExtension(ObjectIdentifier) => "an extension is not accepted",
        /// The provider ID extension is missing.
        #[error("the provider ID extension is missing")]
        ProviderIdMissing => "the provider ID extension is missing",
        /// The provider ID extension is not one `UTF8String` of a provider ID.
        #[error("the provider ID extension is not one UTF8String of a provider ID")]
        ProviderIdMalformed => "the provider ID extension is malformed",

        /// The provider of the evidence is not the provider of the signer that is asked.
        #[error(
            "the signer is {signer}'s, and the provider block says {}",
            claimed.as_ref().map_or("nothing", Provider::as_str)
        )]
        ProviderMismatch {
            /// The signer's provider.
            signer: Provider,
            /// The provider block's.
            claimed: Option<Provider>,
        } => "the provider is not the signer's",
        /// The provider has evidence, and the request has none.
        #[error("the request has no evidence")]
        EvidenceMissing => "the request has no evidence",
        /// The provider has no evidence, and the request has some.
        #[error("the request has evidence for a provider that has none")]
        EvidenceUnexpected => "the request has evidence for a provider that has none",
        /// The evidence is not what its version says.
        #[error("the evidence is malformed: {0}")]
        EvidenceMalformed(String) => "the evidence is malformed",

        /// Another kind of certificate was asked for than these checks are about.
        #[error("the signer that is asked issues another kind of certificate")]
        SignerPurpose => "the signer issues another kind of certificate",
        /// The built-in client signer is asked without evidence. Whoever approved that would let
        /// any holder of a bootstrap token become any node.
        #[error("kubernetes.io/kube-apiserver-client-kubelet is asked without evidence: {0}")]
        UnattestedBuiltInRequest(&'static str) => "a client certificate takes evidence: use kubelet-authenticator",
        /// The request has evidence and names the built-in client signer. Only our signers appraise
        /// evidence. The log and the Event name the right signer.
        #[error("kubernetes.io/kube-apiserver-client-kubelet is asked; {0} is to be")]
        BuiltInSignerNotUsed(String) => "the built-in signer is not used here: ask the provider's own signer",
        /// A request to kube-controller-manager's serving signer has a longer validity than policy
        /// grants, and that signer does not cut it.
        #[error("{} s are asked for, and at most {} s are granted", asked.as_secs(), granted.as_secs())]
        ExpirationTooLong {
            /// `spec.expirationSeconds`.
            asked: Duration,
            /// The most.
            granted: Duration,
        } => "expirationSeconds is over the limit, and this signer does not cut it",

        /// `spec.usages` of a serving certificate is not exactly digital signature and server auth.
        #[error("spec.usages is not exactly digital signature and server auth")]
        ServingUsagesNotExact => "the usages are not exactly digital signature and server auth",
        /// A serving certificate is asked for with attestation blocks. A node that has a
        /// certificate is known by it.
        #[error("a serving certificate is asked for with attestation blocks")]
        AttestationUnexpected => "a request for a serving certificate has no attestation blocks",
        /// A serving certificate is asked for without subject alternative names.
        #[error("a serving certificate is asked for without a name or an address")]
        ServingNamesMissing => "a serving certificate needs a name or an address",
        /// A subject alternative name is neither a DNS name nor an address.
        #[error("a serving certificate is asked for with a name of kind {0}")]
        ServingNameKind(&'static str) => "a serving certificate is for DNS names and IP addresses only",
        /// A subject alternative name is not in its one form: a DNS name in lower case without
        /// wildcard or final dot, an address of 4 or 16 bytes that is not IPv4 in IPv6.
        #[error("a subject alternative name is not in its one form: {0:?}")]
        ServingNameMalformed(String) => "a name or address is not in the one form that is accepted",
        /// A subject alternative name stands there twice.
        #[error("{0} is asked for twice")]
        ServingNameRepeated(ServingName) => "a name or address stands there twice",
        /// More names are asked for than a machine has.
        #[error("{0} names and addresses are asked for")]
        TooManyServingNames(usize) => "there are too many names and addresses",
        /// A name or address that is no machine's: of the control plane's endpoint, of
        /// `kubernetes`, of a Service, of the local host, or of no single host.
        #[error("{0} is no machine's own")]
        ServingNameReserved(ServingName) => "a name or address is reserved",
        /// An address outside of the ranges that serving certificates are limited to, by
        /// `servingAddressRanges`.
        #[error("{0} is outside of servingAddressRanges")]
        ServingAddressOutOfRange(IpAddr) => "an address is outside of the ranges that serving certificates are limited to",
        /// The machine obtained its certificate without evidence, so that nobody knows whose
        /// addresses it may have.
        #[error("node {0} is held without evidence")]
        UnattestedServing(NodeName) => "a node without evidence cannot have a serving certificate",
        /// A name or address of another machine.
        #[error("{0} is also that of machine {1}")]
        ServingNameOfAnotherMachine(ServingName, String) => "a name or address belongs to another machine",
        /// A name or address that the infrastructure does not report of the machine.
        #[error("{0} is not reported of machine {1}")]
        ServingNameNotReported(ServingName, String) => "a name or address is not known to be the machine's",

        /// The requester is neither a bootstrap token nor a node.
        #[error("the requester {0:?} is neither a bootstrap token nor a node")]
        RequesterNotAccepted(String) => "the requester is neither a bootstrap token nor a node",
        /// The requester's groups are not those of a bootstrap token, or not those of a node.
        #[error("the requester's groups are not those of its kind: {0:?}")]
        RequesterGroups(Vec<String>) => "the requester's groups are not accepted",
        /// A node asks for another node's certificate.
        #[error("node {requester} asks for the certificate of node {asked}")]
        RequesterIsAnotherNode {
            /// The requester.
            requester: NodeName,
            /// The requested node.
            asked: NodeName,
        } => "a node can ask for its own certificate only",
        /// A node asks whose certificate carries no UID of a record. kube-apiserver hands it on
        /// from 1.33.
        #[error("the requester's UID is not that of a certificate of ours")]
        RequesterUidMissing => "the requester's certificate names no record",
        /// A certificate that was obtained without evidence asks to be renewed.
        #[error("an unattested certificate asks to be renewed")]
        UnattestedRenewal => "a certificate that was obtained without evidence cannot be renewed",

        /// The bootstrap token belongs to another machine than the request.
        #[error("bootstrap token {0} does not belong to machine {1}")]
        TokenOfAnotherMachine(TokenId, String) => "the bootstrap token belongs to another machine",
        /// The provider ID is not that of the bootstrap token's machine.
        #[error("the request claims {0}, and machine {1} has another provider ID")]
        ProviderIdOfAnotherMachine(ProviderId, String) => "the provider ID is not the machine's",
        /// The machine is being deleted, so it may not join. One that has joined goes on until it is gone.
        #[error("machine {0} is being deleted")]
        MachineDeleting(String) => "the machine is being deleted",

        /// The evidence was made for another cluster.
        #[error("the evidence is for audience {0}")]
        AudienceMismatch(Audience) => "the evidence was made for another cluster",
        /// The evidence is about another machine than the request.
        #[error("the evidence is about {attested}, and the request about {claimed}")]
        AnotherMachine {
            /// The provider ID in the evidence.
            attested: ProviderId,
            /// The provider ID in the request.
            claimed: ProviderId,
        } => "the evidence is about another machine",
        /// The annotation `cluster.x-k8s.io/tpm-endorsement-key` is the controller's to write, and was
        /// there before with something else.
        #[error("the request is annotated with another endorsement key than {0}")]
        EndorsementKeyAnnotation(KeyDigest) => "the annotation tpm-endorsement-key does not name the machine's endorsement key",
        /// The node name is none that this machine may have.
        #[error("the request is for node {0}, and the machine is node {1}")]
        NodeNameMismatch(NodeName, NodeNames) => "the node name is not the machine's",
        /// Another machine, with a certificate that may still be valid, holds the node name.
        #[error("node {0} is held by {1}")]
        NameTaken(NodeName, ProviderId) => "another machine holds the node name",
        /// The record of the renewing certificate is gone.
        #[error("node {0} has no record")]
        RecordMissing(NodeName) => "the certificate's record is gone",
        /// The renewing certificate is of another record or a former generation.
        #[error("certificate {1} of node {0} is of another record or a former generation")]
        FormerCertificate(NodeName, CertificateUid) => "the certificate is no longer the node's",
        /// The machine has the provider ID of the record's holder, and another instance or another
        /// TPM. A person who knows why resets the record.
        #[error("node {0} is held by {1}, which was another instance or had another TPM")]
        AnotherInstance(NodeName, ProviderId) => "the machine is not the one that holds the node name",
        /// The machine's TPM is further back than it was seen to be. There are two of it, or somebody
        /// cleared it; a person who knows which resets the record.
        #[error("the TPM of {1}, which holds node {0}, is behind what was seen of it: a copy, or cleared")]
        TpmRanBackwards(NodeName, ProviderId) => "the TPM's counters ran backwards",
        /// The machine's TPM is that of another machine, which holds another name.
        #[error("the TPM is that of {1}, which holds node {0}")]
        TpmOfAnotherMachine(NodeName, ProviderId) => "the TPM is known as another machine's",
        /// The key is that of another machine's record. A copied disk or image brought it along; the
        /// machine has to make one of its own.
        #[error("the key is that of {1}, which holds node {0}")]
        KeyOfAnotherMachine(NodeName, ProviderId) => "the key is known as another machine's",
        /// A person revoked the machine's certificates. They can have no others until
        /// `identities reset --revoked`.
        #[error("generation {1} of node {0} is revoked")]
        IdentityRevoked(NodeName, u64) => "the machine's certificates were revoked",
    }
    and {
        /// A reason of the provider whose evidence it is.
        Evidence(EvidenceDenial),
    }
}
