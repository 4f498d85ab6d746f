import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vite';

// The names of the built files do not change, so that changes of them are easy to read. The
// server sends them with "Cache-Control: no-cache".
export default defineConfig({
  plugins: [svelte()],
  base: './',
  build: {
    target: 'es2022',
    modulePreload: false,
    reportCompressedSize: true,
    rollupOptions: {
      output: {
        entryFileNames: 'app.js',
        chunkFileNames: '[name].js',
        assetFileNames: 'app.[ext]',
      },
    },
  },
  // "npm run dev" serves the sources. Start 'cairn web PATH --port 8123' beside it, and open
  // http://localhost:5173/?token=… with the token that it prints.
  server: {
    proxy: {
      '/api': {
        target: 'http://127.0.0.1:8123',
        changeOrigin: true,
        headers: { origin: 'http://127.0.0.1:8123' },
      },
    },
  },
});
