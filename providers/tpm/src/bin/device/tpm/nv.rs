//! The vendor's certificates in the NV indices of a TPM, read without a password.

use tss_esapi::abstraction::nv;
use tss_esapi::constants::CapabilityType;
use tss_esapi::handles::{NvIndexTpmHandle, TpmHandle};
use tss_esapi::interface_types::resource_handles::NvAuth;
use tss_esapi::interface_types::session_handles::AuthSession;
use tss_esapi::structures::CapabilityData;

use super::{Device, at};
use crate::protocol::{DeviceError, EndorsementKey, FORMAT_ONE, FORMAT_ONE_ERROR, LAYER};

/// The indices of CA certificates ("TCG EK Credential Profile", 2.5, 2.2.1.5.2).
const CHAIN: std::ops::RangeInclusive<u32> = 0x01c0_0100..=0x01c0_01ff;

/// The maximum number of those indices to read. Vendors put several certificates into one index.
const MAX_CHAIN_INDICES: u32 = 16;

/// The maximum length of their content: more than evidence carries, because of the padding.
const MAX_CHAIN_LEN: usize = 16 * 1024;

impl Device {
    /// Whether a handle is defined. Asked first, because a read of an undefined handle is an error.
    pub(super) fn defined(&mut self, handle: u32) -> Result<bool, DeviceError> {
        let first = self.handles(handle, 1)?.into_iter().next();
        Ok(first == Some(handle))
    }

    /// The defined handles from `first` on, at most `count`.
    fn handles(&mut self, first: u32, count: u32) -> Result<Vec<u32>, DeviceError> {
        let (handles, _) = self
            .context
            .get_capability(CapabilityType::Handles, first, count)
            .map_err(at("TPM2_GetCapability"))?;
        let CapabilityData::Handles(handles) = handles else {
            return Ok(Vec::new());
        };
        Ok(handles.into_inner().into_iter().map(u32::from).collect())
    }

    /// The content of the index for the certificate of such a key, if anyone may read it.
    pub(super) fn certificate(
        &mut self,
        kind: EndorsementKey,
    ) -> Result<Option<Vec<u8>>, DeviceError> {
        let index = kind.certificate_index();
        if !self.defined(index)? {
            return Ok(None);
        }
        self.stored(index)
    }

    /// The content of the indices of CA certificates, concatenated: a certificate that is too large
    /// for one index continues in the next.
    pub(super) fn chain(&mut self) -> Result<Vec<u8>, DeviceError> {
        let mut chain = Vec::new();
        for index in self.handles(*CHAIN.start(), MAX_CHAIN_INDICES)? {
            if !CHAIN.contains(&index) || chain.len() >= MAX_CHAIN_LEN {
                break;
            }
            chain.extend(self.stored(index)?.unwrap_or_default());
        }
        chain.truncate(MAX_CHAIN_LEN);
        Ok(chain)
    }

    /// The content of a defined index, if anyone may read it.
    fn stored(&mut self, index: u32) -> Result<Option<Vec<u8>>, DeviceError> {
        let step = at("TPM2_NV_Read");
        let index = NvIndexTpmHandle::new(index).map_err(&step)?;
        let mut object = self
            .context
            .tr_from_tpm_public(TpmHandle::NvIndex(index))
            .map_err(&step)?;
        let read = self
            .context
            .execute_with_session(Some(AuthSession::Password), |context| {
                nv::read_full(context, NvAuth::NvIndex(object.into()), index)
            });
        self.context.tr_close(&mut object).ok();
        match read.map_err(step) {
            Err(DeviceError::Code { code, .. }) if is_withheld(code) => Ok(None),
            read => read.map(Some),
        }
    }
}

/// Whether the TPM withholds the content of an index: the index was never written, is locked, or is
/// for others (Part 3, `TPM2_NV_Read`; Part 2, `TPM_RC`).
fn is_withheld(code: u32) -> bool {
    match code {
        // TPM_RC_AUTH_TYPE, _AUTH_MISSING, _POLICY, _AUTH_UNAVAILABLE, _NV_RANGE, _NV_SIZE,
        // _NV_LOCKED, _NV_AUTHORIZATION, _NV_UNINITIALIZED
        0x124..=0x126 | 0x12f | 0x146..=0x14a => true,
        // TPM_RC_ATTRIBUTES, _AUTH_FAIL, _POLICY_FAIL, _BAD_AUTH, of any handle or session
        _ if code & LAYER == 0 && code & FORMAT_ONE != 0 => {
            matches!(code & FORMAT_ONE_ERROR, 0x82 | 0x8e | 0x9d | 0xa2)
        }
        _ => false,
    }
}
