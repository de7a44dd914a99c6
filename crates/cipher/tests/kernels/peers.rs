//! Single sectors through OpenSSL and AWS-LC.

use openssl::symm::{Cipher, Crypter, Mode};

pub(crate) fn openssl_xts(key: &[u8], iv: &[u8; 16], data: &[u8]) -> Vec<u8> {
    openssl(if key.len() == 32 { Cipher::aes_128_xts() } else { Cipher::aes_256_xts() }, key, Some(iv), data)
}

pub(crate) fn openssl_cbc(key: &[u8], iv: &[u8; 16], data: &[u8]) -> Vec<u8> {
    let cipher = match key.len() {
        16 => Cipher::aes_128_cbc(),
        24 => Cipher::aes_192_cbc(),
        _ => Cipher::aes_256_cbc(),
    };
    openssl(cipher, key, Some(iv), data)
}

/// A block under AES-256.
pub(crate) fn openssl_ecb(key: &[u8; 32], block: &[u8; 16]) -> [u8; 16] {
    openssl(Cipher::aes_256_ecb(), key, None, block).try_into().unwrap()
}

/// A cipher by OpenSSL's name.
pub(crate) fn openssl_named(name: &str, key: &[u8], iv: &[u8; 16], data: &[u8]) -> Vec<u8> {
    let cipher = openssl::cipher::Cipher::fetch(None, name, None).unwrap();
    let mut ctx = openssl::cipher_ctx::CipherCtx::new().unwrap();
    ctx.encrypt_init(Some(&cipher), Some(key), Some(iv)).unwrap();
    ctx.set_padding(false);
    let mut out = Vec::new();
    ctx.cipher_update_vec(data, &mut out).unwrap();
    ctx.cipher_final_vec(&mut out).unwrap();
    out
}

fn openssl(cipher: Cipher, key: &[u8], iv: Option<&[u8]>, data: &[u8]) -> Vec<u8> {
    let mut crypter = Crypter::new(cipher, Mode::Encrypt, key, iv).unwrap();
    crypter.pad(false);
    let mut out = vec![0; data.len() + 16];
    let done = crypter.update(data, &mut out).unwrap();
    assert_eq!(done + crypter.finalize(&mut out[done..]).unwrap(), data.len());
    out.truncate(data.len());
    out
}

pub(crate) fn aws_lc_xts(key: &[u8], iv: &[u8; 16], data: &[u8]) -> Vec<u8> {
    assert_eq!(key.len(), 64);
    // SAFETY: a getter of a static.
    aws_lc(unsafe { aws_lc_sys::EVP_aes_256_xts() }, key, iv, data)
}

pub(crate) fn aws_lc_cbc(key: &[u8], iv: &[u8; 16], data: &[u8]) -> Vec<u8> {
    // SAFETY: getters of statics.
    let cipher = unsafe {
        match key.len() {
            16 => aws_lc_sys::EVP_aes_128_cbc(),
            24 => aws_lc_sys::EVP_aes_192_cbc(),
            _ => aws_lc_sys::EVP_aes_256_cbc(),
        }
    };
    aws_lc(cipher, key, iv, data)
}

fn aws_lc(cipher: *const aws_lc_sys::EVP_CIPHER, key: &[u8], iv: &[u8; 16], data: &[u8]) -> Vec<u8> {
    let mut out = vec![0; data.len() + 16];
    let mut written = 0;
    // SAFETY: key and IV have the cipher's sizes, `out` has room for the data and one block more.
    unsafe {
        let ctx = aws_lc_sys::EVP_CIPHER_CTX_new();
        assert_eq!(
            1,
            aws_lc_sys::EVP_EncryptInit_ex(ctx, cipher, std::ptr::null_mut(), key.as_ptr(), iv.as_ptr())
        );
        aws_lc_sys::EVP_CIPHER_CTX_set_padding(ctx, 0);
        let len = i32::try_from(data.len()).unwrap();
        assert_eq!(1, aws_lc_sys::EVP_EncryptUpdate(ctx, out.as_mut_ptr(), &mut written, data.as_ptr(), len));
        aws_lc_sys::EVP_CIPHER_CTX_free(ctx);
    }
    assert_eq!(written as usize, data.len());
    out.truncate(data.len());
    out
}
