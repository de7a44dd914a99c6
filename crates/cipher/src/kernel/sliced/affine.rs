//! S-boxes as the AES's between affine maps.
//!
//! The AES's S-box is inversion in a field of 256 elements, then an affine map. Inversion in any
//! other field of 256 elements is the same between two linear maps, so each S-box made of inversion
//! is the AES's between two affine maps. The map behind it reverses the AES's affine part (or, for
//! its inverse, the map before it).

/// A linear map: the image of each bit.
pub(super) type Linear = [u8; 8];

/// A linear map and a sum.
#[cfg_attr(target_arch = "aarch64", expect(dead_code, reason = "GFNI alone reads its matrix"))]
pub(crate) struct Map {
    /// As tables: of the low halves of bytes, and of the high ones. The result is the sum of both.
    pub(super) low: [u8; 16],
    pub(super) high: [u8; 16],
    /// The format of GFNI's instructions: a row of the matrix for each bit of the result, that of
    /// the lowest bit in the highest byte; and the added constant, in each byte.
    pub(super) matrix: u64,
    pub(super) plus: u32,
}

/// An S-box: x becomes `after` * inversion(`before` * x + `between`) + `plus`, in the AES's field.
pub(super) struct SBox {
    pub(super) before: Linear,
    pub(super) between: u8,
    pub(super) after: Linear,
    pub(super) plus: u8,
}

/// The maps before and behind an AES S-box, or its inverse.
pub(super) struct AffineLayers {
    pub(super) before: Map,
    pub(super) behind: Map,
}

/// The affine map of the AES's S-box (FIPS 197, 5.1.1).
pub(super) const AES: Linear = [0x1f, 0x3e, 0x7c, 0xf8, 0xf1, 0xe3, 0xc7, 0x8f];
pub(super) const AES_PLUS: u8 = 0x63;
pub(super) const SAME: Linear = [1, 2, 4, 8, 16, 32, 64, 128];

impl Map {
    /// `linear` * x + `plus`.
    pub(super) const fn new(linear: &Linear, plus: u8) -> Self {
        let mut map =
            Self { low: [0; 16], high: [0; 16], matrix: rows(linear), plus: u32::from_ne_bytes([plus; 4]) };
        let mut x = 0u8;
        while x < 16 {
            map.low[x as usize] = apply(linear, x) ^ plus;
            map.high[x as usize] = apply(linear, x << 4);
            x += 1;
        }
        map
    }
}

impl SBox {
    /// Around the AES's S-box.
    pub(super) const fn around_encryption(&self) -> AffineLayers {
        let behind = product(&self.after, &inverse(&AES));
        let plus = apply(&behind, AES_PLUS) ^ self.plus;
        AffineLayers { before: Map::new(&self.before, self.between), behind: Map::new(&behind, plus) }
    }

    /// Around the inverse of the AES's S-box.
    pub(super) const fn around_decryption(&self) -> AffineLayers {
        let before = Map::new(&product(&AES, &self.before), apply(&AES, self.between) ^ AES_PLUS);
        AffineLayers { before, behind: Map::new(&self.after, self.plus) }
    }

    /// Of bytes rotated to the left first, and again afterwards.
    pub(super) const fn rotated(&self, first: u32, then: u32) -> Self {
        Self {
            before: product(&self.before, &rotation(first)),
            between: self.between,
            after: product(&rotation(then), &self.after),
            plus: self.plus.rotate_left(then),
        }
    }

    /// The inverse S-box's layers.
    pub(super) const fn reverse(&self) -> Self {
        let (before, after) = (inverse(&self.after), inverse(&self.before));
        Self { before, between: apply(&before, self.plus), after, plus: apply(&after, self.between) }
    }

    /// All of it.
    pub(super) const fn table(&self) -> [u8; 256] {
        let mut table = [0; 256];
        let mut x = 0u8;
        loop {
            let inverted = inversion(apply(&self.before, x) ^ self.between);
            table[x as usize] = apply(&self.after, inverted) ^ self.plus;
            if x == u8::MAX {
                return table;
            }
            x += 1;
        }
    }
}

/// The rows of a map, in the order of [`Map::matrix`].
const fn rows(linear: &Linear) -> u64 {
    let mut rows = [0u8; 8];
    let mut bit = 0;
    while bit < 64 {
        let (of, to) = (bit / 8, bit % 8);
        rows[to] |= ((linear[of] >> to) & 1) << of;
        bit += 1;
    }
    u64::from_be_bytes(rows)
}

const fn rotation(by: u32) -> Linear {
    let mut map = SAME;
    let mut bit = 0;
    while bit < 8 {
        map[bit] = map[bit].rotate_left(by);
        bit += 1;
    }
    map
}

const fn apply(map: &Linear, x: u8) -> u8 {
    let mut sum = 0;
    let mut bit = 0;
    while bit < 8 {
        sum ^= map[bit] & ((x >> bit) & 1).wrapping_neg();
        bit += 1;
    }
    sum
}

/// First `b`, then `a`.
const fn product(a: &Linear, b: &Linear) -> Linear {
    let mut map = *b;
    let mut bit = 0;
    while bit < 8 {
        map[bit] = apply(a, b[bit]);
        bit += 1;
    }
    map
}

/// The map that undoes it.
const fn inverse(map: &Linear) -> Linear {
    let mut undone = [0; 8];
    let mut bit = 0;
    while bit < 8 {
        while apply(map, undone[bit]) != 1 << bit {
            undone[bit] += 1;
        }
        bit += 1;
    }
    undone
}

/// x^254 in the AES's field.
const fn inversion(x: u8) -> u8 {
    let (mut power, mut square) = (1, x);
    let mut times = 0;
    while times < 7 {
        square = in_field(square, square);
        power = in_field(power, square);
        times += 1;
    }
    power
}

/// a * b modulo x^8 + x^4 + x^3 + x + 1.
const fn in_field(mut a: u8, mut b: u8) -> u8 {
    let mut sum = 0;
    while a != 0 {
        sum ^= b & (a & 1).wrapping_neg();
        b = (b << 1) ^ (0x1b & (b >> 7).wrapping_neg());
        a >>= 1;
    }
    sum
}

/// The entry at `x`, of which the caches learn nothing: every entry is read.
pub(super) fn entry(table: &[u8; 256], x: u8) -> u8 {
    table.iter().zip(0..=u8::MAX).fold(0, |found, (entry, at)| {
        let is_it = u16::from(at ^ x).wrapping_sub(1) >> 8;
        found | (entry & is_it.to_le_bytes()[0])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const AES_BOX: SBox = SBox { before: SAME, between: 0, after: AES, plus: AES_PLUS };

    #[test]
    fn the_aes_s_box_is_that_of_the_standard() {
        let table = AES_BOX.table();
        assert_eq!([table[0], table[1], table[0x53], table[0xff]], [0x63, 0x7c, 0xed, 0x16]);
        for x in 0..=u8::MAX {
            assert_eq!(entry(&table, x), table[usize::from(x)]);
        }
    }

    #[test]
    fn maps_around_the_aes_s_box_make_the_others() {
        let aes = AES_BOX.table();
        let map = |map: &Map, x: u8| map.low[usize::from(x & 15)] ^ map.high[usize::from(x >> 4)];
        let s_box = SBox { before: AES, between: 0x17, after: AES_BOX.rotated(3, 1).after, plus: 0x55 };
        let table = s_box.table();
        let (encryption, decryption) = (s_box.around_encryption(), s_box.around_decryption());
        for x in 0..=u8::MAX {
            let there = aes[usize::from(map(&encryption.before, x))];
            assert_eq!(map(&encryption.behind, there), table[usize::from(x)]);
            let want = map(&decryption.before, x);
            let back = (0..=u8::MAX).find(|&y| aes[usize::from(y)] == want).unwrap();
            assert_eq!(map(&decryption.behind, back), table[usize::from(x)]);
        }
    }
}
