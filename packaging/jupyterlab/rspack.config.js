// Numbers of modules in their order: hashes of their paths differ in another folder.
module.exports = { optimization: { moduleIds: 'natural', chunkIds: 'natural' } };
