"use strict";(self.rspackChunkwatchdog_app=self.rspackChunkwatchdog_app||[]).push([[0],{17(e,t,o){var r=o(18),a=o.n(r),n=o(19),i=(o.n(n))()(a());i.push([e.id,`/* Colours of the levels; the same in the status bar, the popup and the banner. */
[data-level] {
  --wd-color: #009e73;
}

[data-level='watch'] {
  --wd-color: #2b86c5;
}

[data-level='warning'] {
  --wd-color: #9c6500;
}

[data-level='critical'] {
  --wd-color: #d5281e;
}

[data-level='unknown'] {
  --wd-color: #808080;
}

.wd-dot {
  display: inline-block;
  width: 8px;
  height: 8px;
  margin-right: 6px;
  border-radius: 50%;
  background: var(--wd-color);
}

button.wd-status {
  max-width: 48em;
  padding: 0 6px;
  border: 0;
  overflow: hidden;
  background: none;
  color: inherit;
  font: inherit;
  white-space: nowrap;
  text-overflow: ellipsis;
  cursor: pointer;
}

button.wd-status[data-level='warning'],
button.wd-status[data-level='critical'] {
  background: var(--wd-color);
  color: white;
  font-weight: 600;
}

button.wd-status[data-level='warning'] .wd-dot,
button.wd-status[data-level='critical'] .wd-dot {
  background: white;
}

.wd-tasks {
  max-width: 42em;
  padding: 8px 12px;
  border: var(--jp-border-width) solid var(--jp-border-color1);
  overflow-wrap: anywhere;
  background: var(--jp-layout-color1);
  color: var(--jp-ui-font-color1);
  font-size: var(--jp-ui-font-size1);
}

.wd-task {
  margin-top: 8px;
}

.wd-memory {
  margin-left: 8px;
  color: var(--jp-ui-font-color2);
}

.wd-fact {
  margin-left: 14px;
  color: var(--jp-ui-font-color2);
}

.wd-banner {
  display: flex;
  align-items: center;
  gap: 12px;
  min-height: 48px; /* the panel gives the banner this height */
  padding: 0 12px;
  box-sizing: border-box;
  border-left: 6px solid var(--wd-color);
  background: var(--jp-layout-color2);
  color: var(--jp-ui-font-color1);
  font-size: var(--jp-ui-font-size1);
}

.wd-banner.lm-mod-hidden {
  display: none;
}

.wd-texts {
  flex: 1;
  min-width: 0;
}

.wd-title,
.wd-detail {
  overflow: hidden;
  white-space: nowrap;
  text-overflow: ellipsis;
}

.wd-title {
  font-weight: 600;
}

.wd-detail {
  color: var(--jp-ui-font-color2);
}

.wd-news {
  position: absolute;
  width: 1px;
  height: 1px;
  overflow: hidden;
  clip-path: inset(50%);
}

.wd-buttons {
  display: flex;
  gap: 6px;
}

.wd-button {
  border: var(--jp-border-width) solid var(--jp-border-color1);
  background: var(--jp-layout-color1);
  color: var(--jp-ui-font-color1);
  cursor: pointer;
}

.wd-button:hover:enabled {
  background: var(--jp-layout-color3);
}

.wd-text {
  max-height: 50vh;
  margin: 0;
  overflow: auto;
  white-space: pre-wrap;
  font-size: var(--jp-code-font-size);
}

.wd-death {
  max-width: 46em;
  overflow-wrap: anywhere;
}

.wd-cause {
  white-space: pre-line;
}

.wd-saved {
  font-weight: 600;
}

.wd-button:disabled {
  opacity: 0.5;
  cursor: default;
}
`,""]),o.d(t,{},{A:i})},19(e){e.exports=function(e){var t=[];return t.toString=function(){return this.map(function(t){var o="",r=void 0!==t[5];return t[4]&&(o+="@supports (".concat(t[4],") {")),t[2]&&(o+="@media ".concat(t[2]," {")),r&&(o+="@layer".concat(t[5].length>0?" ".concat(t[5]):""," {")),o+=e(t),r&&(o+="}"),t[2]&&(o+="}"),t[4]&&(o+="}"),o}).join("")},t.i=function(e,o,r,a,n){"string"==typeof e&&(e=[[null,e,void 0]]);var i={};if(r)for(var d=0;d<this.length;d++){var l=this[d][0];null!=l&&(i[l]=!0)}for(var c=0;c<e.length;c++){var s=[].concat(e[c]);r&&i[s[0]]||(void 0!==n&&(void 0===s[5]||(s[1]="@layer".concat(s[5].length>0?" ".concat(s[5]):""," {").concat(s[1],"}")),s[5]=n),o&&(s[2]&&(s[1]="@media ".concat(s[2]," {").concat(s[1],"}")),s[2]=o),a&&(s[4]?(s[1]="@supports (".concat(s[4],") {").concat(s[1],"}"),s[4]=a):s[4]="".concat(a)),t.push(s))}},t}},18(e){e.exports=function(e){return e[1]}},10(e,t,o){o.r(t);var r=o(11),a=o.n(r),n=o(12),i=o.n(n),d=o(13),l=o.n(d),c=o(14),s=o.n(c),p=o(15),u=o.n(p),f=o(16),h=o.n(f),v=o(17),w={};w.styleTagTransform=h(),w.setAttributes=s(),w.insert=l().bind(null,"head"),w.domAPI=i(),w.insertStyleElement=u(),a()(v.A,w);let m=v.A&&v.A.locals?v.A.locals:void 0;o.d(t,{},{default:m})},11(e){var t=[];function o(e){for(var o=-1,r=0;r<t.length;r++)if(t[r].identifier===e){o=r;break}return o}function r(e,r){for(var a={},n=[],i=0;i<e.length;i++){var d=e[i],l=r.base?d[0]+r.base:d[0],c=a[l]||0,s="".concat(l," ").concat(c);a[l]=c+1;var p=o(s),u={css:d[1],media:d[2],sourceMap:d[3],supports:d[4],layer:d[5]};if(-1!==p)t[p].references++,t[p].updater(u);else{var f=function(e,t){var o=t.domAPI(t);return o.update(e),function(t){t?(t.css!==e.css||t.media!==e.media||t.sourceMap!==e.sourceMap||t.supports!==e.supports||t.layer!==e.layer)&&o.update(e=t):o.remove()}}(u,r);r.byIndex=i,t.splice(i,0,{identifier:s,updater:f,references:1})}n.push(s)}return n}e.exports=function(e,a){var n=r(e=e||[],a=a||{});return function(e){e=e||[];for(var i=0;i<n.length;i++){var d=o(n[i]);t[d].references--}for(var l=r(e,a),c=0;c<n.length;c++){var s=o(n[c]);0===t[s].references&&(t[s].updater(),t.splice(s,1))}n=l}}},13(e){var t={};e.exports=function(e,o){var r=function(e){if(void 0===t[e]){var o=document.querySelector(e);if(window.HTMLIFrameElement&&o instanceof window.HTMLIFrameElement)try{o=o.contentDocument.head}catch(e){o=null}t[e]=o}return t[e]}(e);if(!r)throw Error("Couldn't find a style target. This probably means that the value for the 'insert' parameter is invalid.");r.appendChild(o)}},15(e){e.exports=function(e){var t=document.createElement("style");return e.setAttributes(t,e.attributes),e.insert(t,e.options),t}},14(e,t,o){e.exports=function(e){var t=o.nc;t&&e.setAttribute("nonce",t)}},12(e){e.exports=function(e){if("u"<typeof document)return{update:function(){},remove:function(){}};var t=e.insertStyleElement(e);return{update:function(o){var r,a,n;r="",o.supports&&(r+="@supports (".concat(o.supports,") {")),o.media&&(r+="@media ".concat(o.media," {")),(a=void 0!==o.layer)&&(r+="@layer".concat(o.layer.length>0?" ".concat(o.layer):""," {")),r+=o.css,a&&(r+="}"),o.media&&(r+="}"),o.supports&&(r+="}"),(n=o.sourceMap)&&"u">typeof btoa&&(r+="\n/*# sourceMappingURL=data:application/json;base64,".concat(btoa(unescape(encodeURIComponent(JSON.stringify(n))))," */")),e.styleTagTransform(r,t,e.options)},remove:function(){var e;null===(e=t).parentNode||e.parentNode.removeChild(e)}}}},16(e){e.exports=function(e,t){if(t.styleSheet)t.styleSheet.cssText=e;else{for(;t.firstChild;)t.removeChild(t.firstChild);t.appendChild(document.createTextNode(e))}}}}]);